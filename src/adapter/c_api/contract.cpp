// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/contract_kit.hpp"

#include <memory>

#include "adapter/c_api/c_api.hpp"

using namespace hypic::c_api;
using hypic::status;

namespace {

/// A store of C's making in the form that the kit takes: it ends with its clause.
class checked_store final : public hypic::cache_store {
 public:
  checked_store() = default;
  checked_store(checked_store const&) = delete;
  checked_store& operator=(checked_store const&) = delete;
  ~checked_store() override { hypic_store_destroy(store_); }

  hypic::result<hypic::ticket> begin(std::span<hypic::lookup_request const> requests) noexcept override {
    return store_->inner->begin(requests);
  }
  status poll(hypic::ticket which, std::span<hypic::lookup_result> results) noexcept override {
    return store_->inner->poll(which, results);
  }
  status publish(std::span<hypic::publish_request const> requests, std::span<status> outcomes) noexcept override {
    return store_->inner->publish(requests, outcomes);
  }
  status release(hypic::ticket which, hypic::fence after) noexcept override {
    return store_->inner->release(which, after);
  }

  hypic_store* handle() const noexcept { return store_; }
  void own(hypic_store* store) noexcept { store_ = store; }

 private:
  hypic_store* store_ = nullptr;
};

std::unique_ptr<hypic::cache_store> make_checked(void* context) {
  auto const& given = *static_cast<hypic_store_under_test const*>(context);
  auto checked = std::make_unique<checked_store>();  // before there is a store to lose
  auto* const made = given.make(given.context);
  if (made == nullptr) return nullptr;
  checked->own(made);
  return checked;
}

bool damage_checked(void* context, hypic::cache_store& store, hypic::lookup_request const& of) {
  auto const& given = *static_cast<hypic_store_under_test const*>(context);
  auto const kept = c_request_of(*of.layout, of.parts);
  auto const lookup = to_c(of, kept);
  return given.damage(given.context, static_cast<checked_store&>(store).handle(), &lookup) != 0;
}

}  // namespace

extern "C" {

hypic_status hypic_check_store_contract(hypic_store_under_test const* subject,
                                        void (*tell)(void* context, hypic_clause_report const* report),
                                        void* tell_context) {
  return guarded([&]() -> status {
    hypic_store_under_test given{};
    if (auto const s = read(subject, "subject", given); s != status::ok) return s;
    if (given.make == nullptr) return {status::invalid_argument, "subject.make"};
    if (tell == nullptr) return {status::invalid_argument, "tell"};
    hypic::store_under_test with{.make = make_checked, .context = &given, .capacity_bytes = given.capacity_bytes};
    if (given.damage != nullptr) with.damage = damage_checked;
    if (given.threads != 0) with.threads = given.threads;
    if (given.most_polls != 0) with.most_polls = given.most_polls;
    auto const reports = hypic::check_store_contract(with);
    if (!reports) return reports.error();
    for (auto const& report : *reports) {
      hypic_clause_report const told{sizeof told, report.verb, report.clause, static_cast<int32_t>(report.outcome),
                                     report.found.c_str()};
      tell(tell_context, &told);
    }
    return status::ok;
  });
}

}  // extern "C"
