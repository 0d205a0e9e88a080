// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hypic/store/contract_kit.hpp"

/// What the clauses of the contract kit share: records to publish, and a store on trial.
/// Failed allocations are thrown, and caught where the kit is entered.
namespace hypic::inline v0 {

/// The value of a result that fails only where memory does.
template <class T>
T required(result<T> made) {
  if (!made) throw std::bad_alloc{};
  return std::move(made).value();
}

/// Two layers with parts of every kind; another `value_dim` lays records out differently.
inline model_layout sample_model(std::int32_t value_dim = 4) {
  linear_layer linear;
  linear.family = family_id::gated_deltanet;
  linear.dims = {.key_heads = 2, .value_heads = 2, .key_dim = 4, .value_dim = value_dim};
  linear.tail_rows = 3;
  linear.tail_channels = 16;
  linear.tail_groups = 2;
  attention_layer attention{.query_heads = 2, .kv_heads = 2, .key_dim = 4, .value_dim = 4};
  return {.layers = {linear, attention}, .head_rows = 8};
}

/// A record as a host would publish it. Equal seeds give equal bytes.
struct sample {
  record_key key{};
  std::vector<std::int32_t> tokens;
  record_layout layout;
  std::vector<std::byte> block;
  std::vector<digest> digests;
  std::vector<part_id> parts;

  explicit sample(unsigned seed, std::int64_t count = 20)
      : tokens(static_cast<std::size_t>(count)), layout(required(record_layout::make(sample_model(), count))) {
    std::mt19937 random(seed);
    for (auto& byte : key.bytes) byte = static_cast<std::byte>(random());
    std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(seed));
    block.resize(static_cast<std::size_t>(layout.bytes()));
    for (auto& byte : block) byte = static_cast<std::byte>(random());
    for (auto const& part : layout.parts()) parts.push_back(part.id);
    digest_block();
  }

  void digest_block() { digests = required(part_digests(layout, block)); }
  lookup_request lookup(std::span<part_id const> ids = {}) const noexcept { return {key, tokens, &layout, ids}; }
  publish_request publish(std::span<part_id const> ids = {}) const noexcept {
    return {key, tokens, &layout, block, digests, ids, 1};
  }
  std::byte& first_byte(std::size_t part) noexcept {
    return block[static_cast<std::size_t>(layout.parts()[part].offset)];
  }

  /// The parts at `first`, `first` + `step` and so on.
  std::vector<part_id> every(std::size_t step, std::size_t first) const {
    std::vector<part_id> ids;
    for (auto i = first; i < parts.size(); i += step) ids.push_back(parts[i]);
    return ids;
  }

  /// Whether the bytes of the parts at `ids` in `found` are this sample's.
  bool same_parts(std::span<std::byte const> found, std::span<part_id const> ids) const noexcept {
    return found.size() == block.size() && std::ranges::all_of(ids, [&](part_id const& id) {
             auto const& part = layout.parts()[static_cast<std::size_t>(layout.find(id))];
             return std::memcmp(found.data() + part.offset, block.data() + part.offset,
                                static_cast<std::size_t>(part.bytes)) == 0;
           });
  }
};

/// One clause's store and what it found wrong first.
class trial {
 public:
  trial(store_under_test const& subject, cache_store& store) noexcept : subject_(subject), store_(store) {}

  store_under_test const& subject() const noexcept { return subject_; }
  cache_store& store() const noexcept { return store_; }
  bool broken() const noexcept { return !found_.empty(); }
  std::string take_found() noexcept { return std::move(found_); }

  void expect(bool holds, std::string const& otherwise) {
    if (!holds && found_.empty()) found_ = otherwise;
  }
  void expect(status outcome, status::code wanted, std::string const& of) {
    expect(outcome == wanted, of + ": found " + message(outcome) + "; expected " + message(wanted));
  }

  status publish(publish_request const& request) {
    status outcome;
    auto const returned = store_.publish({&request, 1}, {&outcome, 1});
    expect(returned == outcome,
           "publish of one record returned " + message(returned) + "; expected its outcome, " + message(outcome));
    return outcome;
  }
  void publish_well(publish_request const& request) { expect(publish(request), status::ok, "publish of a record"); }

  ticket begin(std::span<lookup_request const> requests) {
    auto const begun = store_.begin(requests);
    expect(begun.error(), status::ok, "begin");
    return begun ? *begun : ticket::none;
  }
  /// Polls until no answer is pending.
  std::vector<lookup_result> poll(ticket which, std::size_t count) {
    std::vector<lookup_result> results(count);
    for (std::int64_t i = 0; i < subject_.most_polls && !broken(); ++i) {
      expect(store_.poll(which, results), status::ok, "poll");
      if (std::ranges::none_of(results, [](auto const& r) { return r.state == lookup_state::pending; })) return results;
      std::this_thread::yield();
    }
    expect(false, "an answer is pending after " + std::to_string(subject_.most_polls) + " polls; expected one");
    return std::vector<lookup_result>(count);
  }
  void release(ticket which, fence after = {}) { expect(store_.release(which, after), status::ok, "release"); }

  /// The answer to one request; its lease goes to `lease`, or ends.
  lookup_result look_up(lookup_request const& request, ticket* lease = nullptr) {
    auto const which = begin({&request, 1});
    auto const found = poll(which, 1).front();
    if (lease != nullptr) {
      *lease = which;
    } else {
      release(which);
    }
    return found;
  }

  /// A hit with the right bytes of the parts that `request` asks for, of `of`.
  void expect_hit(sample const& of, lookup_request const& request, std::string const& what) {
    ticket lease{};
    auto const found = look_up(request, &lease);
    expect_hit(of, request, found, what);
    release(lease);
  }
  void expect_hit(sample const& of, lookup_request const& request, lookup_result const& found,
                  std::string const& what) {
    auto const asked = request.parts.empty() ? std::span<part_id const>(of.parts) : request.parts;
    expect(found.state == lookup_state::hit, what + " is a miss (" + to_string(found.reason) + "); expected a hit");
    expect(broken() || of.same_parts(found.block, asked),
           what + " is a hit with other bytes in a part that was asked for; expected those that were published");
  }
  void expect_miss(lookup_request const& request, miss_reason why, std::string const& what) {
    auto const found = look_up(request);
    expect(found.state == lookup_state::miss, what + " is a hit; expected a miss");
    expect(found.state != lookup_state::miss || found.reason == why,
           what + " is a miss because " + to_string(found.reason) + "; expected " + to_string(why));
  }
  void expect_no_hit(lookup_request const& request, std::string const& what) {
    expect(look_up(request).state == lookup_state::miss, what + " is a hit; expected a miss");
  }

  /// A sample that fills one part in `share` of the store.
  sample filling(unsigned seed, double share) const {
    auto const bytes_of = [](std::int64_t tokens) {
      return required(record_layout::make(sample_model(), tokens)).bytes();
    };
    auto const token_bytes = (bytes_of(1100) - bytes_of(100)) / 1000;
    return sample(seed, static_cast<std::int64_t>(static_cast<double>(subject_.capacity_bytes) * share) / token_bytes);
  }
  /// Samples that together need nearly twice what the store holds, a ninth of it each.
  std::vector<sample> more_than_fits() const {
    std::vector<sample> all;
    for (unsigned seed = 100; seed < 116; ++seed) all.push_back(filling(seed, 1.0 / 9));
    return all;
  }
  /// Publishes to the store until it must have thrown out what it may.
  void press(std::span<sample const> samples) {
    for (auto const& one : samples) static_cast<void>(publish(one.publish()));
  }

 private:
  store_under_test const& subject_;
  cache_store& store_;
  std::string found_;
};

}  // namespace hypic::inline v0
