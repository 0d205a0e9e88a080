// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hypic/store/memory_store.hpp"
#include "store/reference_store.hpp"
#include "store/store_data.hpp"
#include "support/failing_allocation.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::size_t keys = 64;
constexpr int versions = 2;

bool reached(void* context) noexcept { return static_cast<std::atomic<bool>*>(context)->load(); }

/// Random verbs, right and wrong ones and such that find no memory, on a store with room for eight of 64 records, and
/// the same verbs on the reference. The first difference is kept.
class random_operations {
 public:
  /// `mixed`: records of six sizes, an empty one among them; otherwise all are of one, and exactly eight fit.
  random_operations(std::uint32_t seed, bool mixed) : random_(seed) {
    auto const model = make_small_model();
    std::int64_t all = 0;
    for (std::size_t name = 0; name < keys; ++name) {
      auto const n = static_cast<std::int32_t>(name);
      auto const tokens = !mixed ? 12 : n == 0 ? 0 : 1 + n % 5 * 4;
      // Two publishers of a key whose bytes differ: whose part is there first stays.
      segment_record first(model, tokens, n);
      auto second = first;
      second.block = make_block(second.layout, static_cast<std::uint32_t>(n) + 1000);
      second.digests = *part_digests(second.layout, second.block);
      all += first.bytes();
      records_.push_back({std::move(first), std::move(second)});
    }
    store_ = std::make_unique<memory_store>(all / 8);
    reference_ = std::make_unique<reference_store>(all / 8);
  }

  void step() {
    // In turns more leases begin than end, until the store is full of them, and more end than begin.
    crowded_ = open_.size() < (crowded_ ? 48U : 3U);
    switch (below(14)) {
      case 0:
      case 1:
      case 2: return publish_some();
      case 3:
      case 4: return begin_some();
      case 5: return crowded_ ? begin_some() : release_one();
      case 6:
      case 7: return poll_one();
      case 8:
      case 9: return release_one();
      case 10: return reach_fence();
      case 11: return damage_one();
      case 12: return fail_one();
      default: return below(2) == 0 ? publish_without_memory() : begin_without_memory();
    }
  }

  void finish() {
    while (!open_.empty()) release_one();
    for (auto& one : closing_) *one.over = true;
    sweep();
  }

  /// Empty, or what is wrong.
  std::string fault() const {
    if (!fault_.empty()) return fault_;
    auto const found = store_->usage();
    auto const wanted = reference_->usage();
    if (found.free + found.held + found.pinned != found.capacity) return "free + held + pinned is not the capacity";
    if (found.free < 0 || found.held < 0 || found.pinned < 0) return "usage is negative";
    if (found.pinned != wanted.pinned) return different("pinned", found.pinned, wanted.pinned);
    if (found.held != wanted.held) return different("held", found.held, wanted.held);
    if (found.records != wanted.records) return different("records", found.records, wanted.records);
    return {};
  }

  store_usage usage() const { return store_->usage(); }

  struct happened {
    int hits = 0, absent = 0, incomplete = 0, corrupt = 0;
    int kept = 0, full = 0, refused = 0, no_memory = 0, evictions_for_nothing = 0;
    int held_back = 0, most_records = 0;
  };
  happened const& seen() const { return seen_; }

 private:
  struct open_ticket {
    ticket name = ticket::none;
    std::vector<std::vector<part_id>> parts;
    std::vector<lookup_request> requests;
    std::vector<reference_store::lookup> expected;
    std::vector<lookup_result> answers;
    bool polled = false;
    std::unique_ptr<std::atomic<bool>> over = std::make_unique<std::atomic<bool>>(false);
  };

  static std::string different(char const* what, std::int64_t found, std::int64_t wanted) {
    return std::string(what) + " is " + std::to_string(found) + ", expected " + std::to_string(wanted);
  }
  void expect(bool holds, std::string const& otherwise) {
    if (!holds && fault_.empty()) fault_ = otherwise;
  }
  void expect(status found, status wanted, char const* of) {
    expect(found == wanted, std::string(of) + ": " + message(found) + ", expected " + message(wanted));
  }

  std::size_t below(std::size_t bound) { return random_() % bound; }
  /// Half of the time one of a few names, so that what is there is asked for too.
  std::size_t any_name() { return below(below(2) == 0 ? keys / 8 : keys); }

  /// All parts, every second one, or a few.
  std::vector<std::size_t> some_parts(record_layout const& layout) {
    std::vector<std::size_t> parts(layout.parts().size());
    std::iota(parts.begin(), parts.end(), std::size_t{0});
    auto const choice = below(5);
    if (choice < 2) std::erase_if(parts, [&](auto i) { return i % 2 != choice; });
    if (choice == 2 && !parts.empty()) parts = {below(parts.size()), below(parts.size())};
    return parts;
  }
  static std::vector<part_id> ids_of(record_layout const& layout, std::vector<std::size_t> const& parts) {
    std::vector<part_id> ids;
    for (auto const i : parts) ids.push_back(layout.parts()[i].id);
    return ids;
  }

  struct publication {
    std::size_t name;
    int version;
    std::vector<std::size_t> parts;
    std::vector<part_id> ids;
    publish_request request;
  };
  publication any_publication() {
    publication made{
        .name = any_name(), .version = static_cast<int>(below(versions)), .parts = {}, .ids = {}, .request = {}};
    auto const& from = records_[made.name][static_cast<std::size_t>(made.version)];
    made.parts = some_parts(from.layout);
    made.ids = ids_of(from.layout, made.parts);
    made.request = from.publication(static_cast<std::int64_t>(below(100)));
    return made;
  }
  status publish_to_reference(publication const& one) {
    auto const& from = records_[one.name][static_cast<std::size_t>(one.version)];
    return reference_->publish(one.name, one.version, one.parts, from.layout.parts().size(), from.bytes(),
                               one.request.value);
  }

  void publish_some() {
    std::vector<publication> batch;
    for (auto count = below(4); count > 0; --count) batch.push_back(any_publication());
    std::vector<publish_request> requests;
    for (auto& one : batch) {
      one.request.parts = one.ids;
      requests.push_back(one.request);
    }
    std::vector<status> outcomes(batch.size());
    static_cast<void>(store_->publish(requests, outcomes));
    if (!batch.empty()) end_leases();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      auto const wanted = publish_to_reference(batch[i]);
      expect(outcomes[i], wanted, "publish");
      ++(wanted == status::ok ? seen_.kept : seen_.full);
    }
    seen_.most_records = std::max(seen_.most_records, static_cast<int>(store_->usage().records));
  }

  /// An allocation fails somewhere on the way, or none does: nothing has come, though what was thrown out for it is gone.
  void publish_without_memory() {
    sweep();
    auto one = any_publication();
    one.request.parts = one.ids;
    auto const before = store_->usage();
    auto const allowed = static_cast<int>(below(14));
    status outcome;
    bool const failed = [&] {
      failing_allocation const failing{allowed};
      outcome = publish(*store_, one.request);
      return failing.failed();
    }();
    if (!failed) return expect(outcome, publish_to_reference(one), "publish with memory enough");
    ++seen_.no_memory;
    expect(outcome, status::backend_failure, "publish without memory");
    if (store_->usage().records == before.records) return;
    ++seen_.evictions_for_nothing;
    expect(reference_->find(one.name) == nullptr, "a failed publish to a record that is there threw others out");
    expect(reference_->make_room(records_[one.name][0].bytes()), "a failed publish threw records out in vain");
  }

  open_ticket any_question() {
    open_ticket made;
    auto const count = below(4);
    for (std::size_t i = 0; i < count; ++i) {
      auto const name = any_name();
      auto const& layout = records_[name][0].layout;
      auto parts = some_parts(layout);
      made.parts.push_back(ids_of(layout, parts));
      made.expected.push_back({.name = name, .parts = std::move(parts)});
    }
    for (std::size_t i = 0; i < count; ++i)
      made.requests.push_back(records_[made.expected[i].name][0].question(made.parts[i]));
    made.answers.resize(count);
    return made;
  }

  void begin_some() {
    auto made = any_question();
    auto const begun = store_->begin(made.requests);
    expect(begun.error(), status::ok, "begin");
    if (begun) keep(std::move(made), *begun);
  }

  void begin_without_memory() {
    sweep();
    auto made = any_question();
    auto const allowed = static_cast<int>(below(6));
    bool failed = false;
    auto const begun = [&] {
      failing_allocation const failing{allowed};
      auto outcome = store_->begin(made.requests);
      failed = failing.failed();
      return outcome;
    }();
    seen_.no_memory += failed;
    expect(begun.error(), failed ? status::backend_failure : status::ok, "begin without memory");
    if (begun) keep(std::move(made), *begun);
  }

  void keep(open_ticket made, ticket name) {
    end_leases();
    made.name = name;
    reference_->begin(made.expected);
    open_.push_back(std::move(made));
  }

  /// Polls a ticket, the first time or again. Polling needs no memory.
  void poll(open_ticket& one) {
    end_leases();
    auto const outcome = [&] {
      failing_allocation const failing{0};
      return store_->poll(one.name, one.answers);
    }();
    expect(outcome, status::ok, "poll");
    reference_->poll(one.expected);
    for (std::size_t i = 0; i < one.expected.size(); ++i) {
      auto const& wanted = one.expected[i];
      auto const& found = one.answers[i];
      expect(found.state == wanted.state && found.reason == wanted.reason,
             std::string("an answer is ") + to_string(found.reason) + ", expected " + to_string(wanted.reason));
      if (!one.polled) count(wanted.reason);
    }
    one.polled = true;
    compare_bytes(one);
  }
  void count(miss_reason reason) {
    seen_.hits += reason == miss_reason::none;
    seen_.absent += reason == miss_reason::absent;
    seen_.incomplete += reason == miss_reason::incomplete;
    seen_.corrupt += reason == miss_reason::corrupt;
  }

  /// Hits have the bytes of the publication that came first, part by part, as long as they are leased.
  void compare_bytes(open_ticket const& one) {
    for (std::size_t i = 0; i < one.expected.size(); ++i) {
      auto const& wanted = one.expected[i];
      if (wanted.state != lookup_state::hit || !fault_.empty()) continue;
      for (auto const part : wanted.parts) {
        auto const& from = records_[wanted.name][static_cast<std::size_t>(wanted.leased->version[part])];
        auto const& where = from.layout.parts()[part];
        expect(same_bytes(bytes_of(where, one.answers[i].block), bytes_of(where, from.block)),
               "a hit has other bytes than were published first");
      }
    }
  }

  void poll_one() {
    if (open_.empty()) return sweep();
    poll(open_[below(open_.size())]);
  }

  /// Releases a ticket, polled or not, with a fence that is or is not reached.
  void release_one() {
    if (open_.empty()) return sweep();
    auto const at = open_.begin() + static_cast<std::ptrdiff_t>(below(open_.size()));
    auto one = std::move(*at);
    open_.erase(at);
    compare_bytes(one);
    *one.over = below(4) != 0;
    seen_.held_back += !*one.over;
    auto const outcome = [&] {
      failing_allocation const failing{0};
      return store_->release(one.name, {reached, one.over.get()});
    }();
    expect(outcome, status::ok, "release");
    auto const name = one.name;
    closing_.push_back(std::move(one));
    end_leases();
    if (below(4) == 0) expect(store_->release(name), status::not_found, "double release");
  }

  void reach_fence() {
    if (!closing_.empty()) {
      auto& one = closing_[below(closing_.size())];
      compare_bytes(one);  // until now
      *one.over = true;
    }
    sweep();
  }

  /// Any verb looks after the fences.
  void sweep() {
    expect(store_->release(ticket::none), status::not_found, "release of no ticket");
    end_leases();
  }
  void end_leases() {
    std::erase_if(closing_, [&](auto& one) {
      if (!one.over->load()) return false;
      reference_->release(one.expected);
      return true;
    });
  }

  /// Flips a bit of a part that is there and that nobody leases.
  void damage_one() {
    auto const name = any_name();
    auto const& layout = records_[name][0].layout;
    auto* const there = reference_->find(name);
    if (there == nullptr || there->leases > 0 || layout.parts().empty()) return;
    auto const part = below(layout.parts().size());
    if (there->version[part] == reference_store::nothing || there->damaged[part]) return;

    open_ticket reader;
    reader.parts = {{layout.parts()[part].id}};
    reader.requests = {records_[name][0].question(reader.parts[0])};
    reader.expected.push_back({.name = name, .parts = {part}});
    reader.answers.resize(1);
    auto const begun = store_->begin(reader.requests);
    expect(begun.error(), status::ok, "begin");
    if (!begun) return;
    keep(std::move(reader), *begun);
    poll(open_.back());
    if (fault_.empty()) {
      auto const& where = layout.parts()[part];
      auto* const bytes = const_cast<std::byte*>(open_.back().answers[0].block.data());
      bytes[where.offset + static_cast<std::int64_t>(below(static_cast<std::size_t>(where.bytes)))] ^= std::byte{4};
      there->damaged[part] = true;
    }
    expect(store_->release(open_.back().name), status::ok, "release");
    reference_->release(open_.back().expected);
    open_.pop_back();
    end_leases();
  }

  /// A call that has to fail, and to change nothing.
  void fail_one() {
    sweep();
    auto one = any_publication();
    one.request.parts = one.ids;
    auto digests = std::vector<digest>(one.request.digests.begin(), one.request.digests.end());
    one.request.digests = digests;
    auto question = records_[one.name][0].question();
    question.layout = nullptr;
    status outcome, wanted;
    switch (below(4)) {
      case 0:
        if (one.parts.empty()) return;
        digests[one.parts[below(one.parts.size())]][below(32)] ^= std::byte{1};
        std::tie(outcome, wanted) = std::pair(publish(*store_, one.request), status(status::corrupt));
        break;
      case 1:
        one.request.value = -1;
        std::tie(outcome, wanted) = std::pair(publish(*store_, one.request), status(status::invalid_argument));
        break;
      case 2:
        one.request.tokens =
            records_[one.name][0].tokens.empty() ? records_[1][0].tokens : std::span<std::int32_t const>{};
        std::tie(outcome, wanted) = std::pair(publish(*store_, one.request), status(status::invalid_shape));
        break;
      default:
        std::tie(outcome, wanted) = std::pair(store_->begin({&question, 1}).error(), status(status::invalid_argument));
    }
    expect(outcome, wanted, "a call that has to fail");
    ++seen_.refused;
  }

  std::mt19937 random_;
  bool crowded_ = true;
  std::vector<std::array<segment_record, versions>> records_;
  std::unique_ptr<memory_store> store_;
  std::unique_ptr<reference_store> reference_;
  std::vector<open_ticket> open_;
  std::vector<open_ticket> closing_;
  std::string fault_;
  happened seen_;
};

}  // namespace

TEST_CASE("After each of 1e5 random operations, some of which fail, the store is as the reference says",
          "[store][memory_store][case-18][case-19][case-20][case-27]") {
  for (std::uint32_t const seed : {2607u, 1u, 2u, 3u}) {
    bool const mixed = seed % 2 == 1;
    CAPTURE(seed, mixed);
    random_operations operations{seed, mixed};
    for (int i = 0; i < 25'000; ++i) {
      operations.step();
      auto const fault = operations.fault();
      if (!fault.empty()) FAIL("operation " << i << ": " << fault);
    }
    operations.finish();
    CHECK(operations.fault().empty());
    CHECK(operations.usage().pinned == 0);

    // All of it happened.
    auto const& seen = operations.seen();
    CHECK(seen.hits > 100);
    CHECK(seen.absent > 100);
    CHECK(seen.incomplete > 100);
    CHECK(seen.corrupt > 10);
    CHECK(seen.kept > 1000);
    CHECK(seen.full > 100);
    CHECK(seen.refused > 100);
    CHECK(seen.no_memory > 100);
    CHECK(seen.evictions_for_nothing > 10);
    CHECK(seen.held_back > 100);
    if (!mixed) CHECK(seen.most_records == 8);
  }
}
