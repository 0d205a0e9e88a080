// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "adapter/c_api/c_api.hpp"
#include "hypic/store/memory_store.hpp"

namespace hypic::inline v0::c_api {

c_request c_request_of(hypic::record_layout const& layout, std::span<hypic::part_id const> parts) {
  c_request made{{layout}, {}};
  for (auto const& id : parts) made.parts.push_back(to_c(id));
  return made;
}

hypic_lookup to_c(hypic::lookup_request const& from, c_request const& with) noexcept {
  return {sizeof(hypic_lookup),
          to_c(from.key.bytes),
          from.tokens.data(),
          static_cast<std::int64_t>(from.tokens.size()),
          &with.record,
          with.parts.empty() ? nullptr : with.parts.data(),
          static_cast<std::int64_t>(with.parts.size())};
}

}  // namespace hypic::inline v0::c_api

using namespace hypic::c_api;
using hypic::status;

namespace {

/// A store of C functions. Requests reach it in C's form, which lives as the contract says: until the ticket's release.
class table_store final : public hypic::cache_store {
 public:
  explicit table_store(hypic_store_table const& table) noexcept : table_(table) {}
  table_store(table_store const&) = delete;
  table_store& operator=(table_store const&) = delete;
  ~table_store() override {
    if (table_.destroy != nullptr) table_.destroy(table_.context);
  }

  hypic::result<hypic::ticket> begin(std::span<hypic::lookup_request const> requests) noexcept override {
    try {
      // All that allocates comes before the caller's store knows of it: a failure leaves no ticket behind.
      std::multimap<std::uint64_t, std::list<c_request>> made;
      auto& kept = made.emplace(0, std::list<c_request>{})->second;
      std::vector<hypic_lookup> lookups;
      if (auto const s = in_c(requests, kept, lookups); s != status::ok) return s;
      std::uint64_t ticket = 0;
      auto const outcome =
          to_cpp(table_.begin(table_.context, lookups.data(), static_cast<std::int64_t>(lookups.size()), &ticket));
      if (outcome != status::ok) return outcome;
      auto named = made.extract(made.begin());
      named.key() = ticket;
      std::lock_guard const lock(mutex_);
      asked_.insert(std::move(named));
      return static_cast<hypic::ticket>(ticket);
    } catch (std::exception const&) {
      return status{status::backend_failure, "memory"};
    }
  }

  status poll(hypic::ticket which, std::span<hypic::lookup_result> results) noexcept override {
    try {
      std::vector<hypic_answer> answers(results.size());
      auto const outcome = to_cpp(table_.poll(table_.context, static_cast<std::uint64_t>(which), answers.data(),
                                              static_cast<std::int64_t>(answers.size())));
      if (outcome != status::ok) return outcome;
      std::ranges::transform(answers, results.begin(), [](auto const& answer) { return result_of(answer); });
      return outcome;
    } catch (std::exception const&) {
      return {status::backend_failure, "memory"};
    }
  }

  status publish(std::span<hypic::publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (outcomes.size() != requests.size()) {
      return {status::invalid_shape, "outcomes", static_cast<std::int64_t>(outcomes.size()), status::relation::equal_to,
              static_cast<std::int64_t>(requests.size())};
    }
    std::ranges::fill(outcomes, status{status::backend_failure, "memory"});
    try {
      std::list<c_request> kept;
      std::vector<hypic_publication> publications;
      if (auto const s = in_c(requests, kept, publications); s != status::ok) {
        std::ranges::fill(outcomes, s);
        return s;
      }
      std::vector<hypic_status> told(publications.size());
      auto const outcome = to_cpp(table_.publish(table_.context, publications.data(),
                                                 static_cast<std::int64_t>(publications.size()), told.data()));
      std::ranges::transform(told, outcomes.begin(), [](auto const& one) { return to_cpp(one); });
      return outcome;
    } catch (std::exception const&) {
      return {status::backend_failure, "memory"};
    }
  }

  status release(hypic::ticket which, hypic::fence after) noexcept override {
    auto const ticket = static_cast<std::uint64_t>(which);
    std::unique_ptr<hypic::fence> fence;
    if (after.reached != nullptr) {
      fence.reset(new (std::nothrow) hypic::fence(after));
      if (fence == nullptr) return {status::backend_failure, "memory"};
    }
    auto const outcome =
        to_cpp(table_.release(table_.context, ticket, fence == nullptr ? nullptr : reached, fence.get()));
    if (outcome != status::ok) return outcome;
    static_cast<void>(fence.release());  // ends when it is reached
    std::lock_guard const lock(mutex_);
    if (auto const found = asked_.find(ticket); found != asked_.end()) asked_.erase(found);
    return outcome;
  }

 private:
  static int reached(void* context) {
    auto* const after = static_cast<hypic::fence*>(context);
    if (!after->reached(after->context)) return 0;
    delete after;
    return 1;
  }

  static hypic::lookup_result result_of(hypic_answer const& from) noexcept {
    if (from.state == HYPIC_PENDING) return {};
    if (from.state == HYPIC_HIT) {
      return {
          hypic::lookup_state::hit, hypic::miss_reason::none, {static_cast<std::byte const*>(from.block), from.bytes}};
    }
    bool const known = from.reason > HYPIC_NO_MISS && from.reason <= HYPIC_STORE_FAILURE;
    return {hypic::lookup_state::miss,
            known ? static_cast<hypic::miss_reason>(from.reason) : hypic::miss_reason::store_failure,
            {}};
  }

  template <class Request, class CRequest>
  static status in_c(std::span<Request const> requests, std::list<c_request>& kept, std::vector<CRequest>& given) {
    for (auto const& request : requests) {
      if (request.layout == nullptr) return {status::invalid_argument, "requests.layout"};
      auto const& copy = kept.emplace_back(c_request_of(*request.layout, request.parts));
      given.push_back(in_c(request, copy));
    }
    return status::ok;
  }

  static hypic_lookup in_c(hypic::lookup_request const& from, c_request const& with) noexcept {
    return to_c(from, with);
  }
  static hypic_publication in_c(hypic::publish_request const& from, c_request const& with) noexcept {
    return {sizeof(hypic_publication),
            to_c(from.key.bytes),
            from.tokens.data(),
            static_cast<std::int64_t>(from.tokens.size()),
            &with.record,
            from.block.data(),
            from.block.size(),
            reinterpret_cast<hypic_digest const*>(from.digests.data()),
            static_cast<std::int64_t>(from.digests.size()),
            with.parts.empty() ? nullptr : with.parts.data(),
            static_cast<std::int64_t>(with.parts.size()),
            from.value};
  }

  hypic_store_table table_;
  std::mutex mutex_;
  /// Of each ticket; a store that gives one twice breaks the contract, but not the memory that it was lent.
  std::multimap<std::uint64_t, std::list<c_request>> asked_;
};
static_assert(sizeof(hypic_digest) == sizeof(hypic::digest));

/// C's answer to whether the work is over, as a fence. It lives until it is reached.
struct c_fence {
  hypic_reached reached;
  void* context;
};
bool c_fence_reached(void* context) noexcept {
  auto* const fence = static_cast<c_fence*>(context);
  if (fence->reached(fence->context) == 0) return false;
  delete fence;
  return true;
}

}  // namespace

extern "C" {

hypic_status hypic_memory_store_create(int64_t capacity_bytes, hypic_store** store) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}}); s != status::ok) return s;
    *store = new hypic_store{std::make_unique<hypic::memory_store>(capacity_bytes)};
    return status::ok;
  });
}

hypic_status hypic_table_store_create(hypic_store_table const* table, hypic_store** store) {
  return guarded([&]() -> status {
    hypic_store_table given{};
    if (auto const s = hypic::first_failure(expect_pointers({{"store", store}}), read(table, "table", given));
        s != status::ok)
      return s;
    if (given.begin == nullptr) return {status::invalid_argument, "table.begin"};
    if (given.poll == nullptr) return {status::invalid_argument, "table.poll"};
    if (given.publish == nullptr) return {status::invalid_argument, "table.publish"};
    if (given.release == nullptr) return {status::invalid_argument, "table.release"};
    auto made = std::make_unique<hypic_store>();
    made->inner = std::make_unique<table_store>(given);
    made->context = given.context;
    *store = made.release();
    return status::ok;
  });
}
void hypic_store_destroy(hypic_store* store) { delete store; }
void* hypic_store_context(hypic_store const* store) { return store->context; }

hypic_status hypic_store_begin(hypic_store* store, hypic_lookup const* lookups, int64_t count, uint64_t* ticket) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}, {"ticket", ticket}}); s != status::ok) return s;
    std::vector<hypic_lookup> given;
    if (auto const s = read_all(lookups, count, "lookups", given); s != status::ok) return s;
    std::vector<std::vector<hypic::part_id>> parts;
    std::vector<hypic::lookup_request> requests;
    for (auto const& one : given) {
      parts.push_back(parts_of(one.parts, one.part_count));
      requests.push_back({to_cpp(one.key), span_of(one.tokens, one.token_count),
                          one.record == nullptr ? nullptr : &one.record->layout, parts.back()});
    }
    auto const begun = store->inner->begin(requests);
    if (!begun) return begun.error();
    *ticket = static_cast<uint64_t>(*begun);
    return status::ok;
  });
}

hypic_status hypic_store_poll(hypic_store* store, uint64_t ticket, hypic_answer* answers, int64_t count) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}}); s != status::ok) return s;
    if (count < 0 || (count > 0 && answers == nullptr)) return {status::invalid_argument, "answers"};
    std::vector<hypic::lookup_result> results(static_cast<std::size_t>(count));
    auto const outcome = store->inner->poll(static_cast<hypic::ticket>(ticket), results);
    if (outcome != status::ok) return outcome;
    std::ranges::transform(results, answers, [](auto const& one) {
      return hypic_answer{static_cast<int32_t>(one.state), static_cast<int32_t>(one.reason), one.block.data(),
                          one.block.size()};
    });
    return status::ok;
  });
}

hypic_status hypic_store_publish(hypic_store* store, hypic_publication const* publications, int64_t count,
                                 hypic_status* outcomes) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}}); s != status::ok) return s;
    std::vector<hypic_publication> given;
    if (auto const s = read_all(publications, count, "publications", given); s != status::ok) return s;
    if (count > 0 && outcomes == nullptr) return {status::invalid_argument, "outcomes"};
    std::vector<std::vector<hypic::part_id>> parts;
    std::vector<std::vector<hypic::digest>> digests;
    std::vector<hypic::publish_request> requests;
    for (auto const& one : given) {
      parts.push_back(parts_of(one.parts, one.part_count));
      auto& theirs = digests.emplace_back();
      for (auto const& each : span_of(one.digests, one.digest_count)) theirs.push_back(to_cpp(each).bytes);
      requests.push_back({to_cpp(one.key),
                          span_of(one.tokens, one.token_count),
                          one.record == nullptr ? nullptr : &one.record->layout,
                          {static_cast<std::byte const*>(one.block), one.block == nullptr ? 0 : one.bytes},
                          theirs,
                          parts.back(),
                          one.value});
    }
    std::vector<status> told(requests.size());
    auto const outcome = store->inner->publish(requests, told);
    std::ranges::transform(told, outcomes, [](status const& one) { return to_c(one); });
    return outcome;
  });
}

hypic_status hypic_store_release(hypic_store* store, uint64_t ticket, hypic_reached reached, void* context) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}}); s != status::ok) return s;
    auto const which = static_cast<hypic::ticket>(ticket);
    if (reached == nullptr) return store->inner->release(which, {});
    auto fence = std::make_unique<c_fence>(c_fence{reached, context});
    auto const outcome = store->inner->release(which, {c_fence_reached, fence.get()});
    if (outcome == status::ok) static_cast<void>(fence.release());
    return outcome;
  });
}

}  // extern "C"
