// SPDX-License-Identifier: Apache-2.0
// A whole engine in small: a model of two layers, a store of its own, prompts of two documents and a question. Each order
// of the documents is served cold, and again with the records that the other order made.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "hypic/store/contract_kit.hpp"
#include "map_store.hpp"
#include "toy_engine.hpp"

namespace {

using toy::floats, toy::served, toy::take;

constexpr floats served::*members[]{&served::state, &served::keys, &served::values, &served::last};

bool same_bits(served const& left, served const& right) {
  return std::ranges::all_of(members, [&](auto member) {
    auto const &l = left.*member, &r = right.*member;
    return l.size() == r.size() && std::memcmp(l.data(), r.data(), l.size() * sizeof(float)) == 0;
  });
}

/// |found - wanted| / |wanted|
double distance(floats const& found, floats const& wanted) {
  double error = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(double{found[i]} - double{wanted[i]}, 2);
    norm += std::pow(double{wanted[i]}, 2);
  }
  return std::sqrt(error / norm);
}

bool near(served const& found, served const& wanted) {
  return std::ranges::all_of(members, [&](auto member) { return distance(found.*member, wanted.*member) < 1e-5; });
}

hypic::prompt_span document(std::int32_t first_token, std::size_t tokens) {
  hypic::prompt_span span{.kind = hypic::span_kind::cached, .tokens = std::vector<std::int32_t>(tokens)};
  std::iota(span.tokens.begin(), span.tokens.end(), first_token);
  auto const model = take(hypic::model_fingerprint(toy::layout, "made-up weights, revision 1"));
  span.key = take(hypic::make_record_key({.tokens = span.tokens, .model = model}));
  return span;
}

/// The whole prompt as one span of nothing cached.
served serve_directly(std::vector<hypic::prompt_span> const& prompt) {
  hypic::prompt_span all;
  for (auto const& span : prompt) all.tokens.insert(all.tokens.end(), span.tokens.begin(), span.tokens.end());
  map_store nothing(0);
  return toy::serve(nothing, {all}, 0);
}

bool holds(char const* claim, bool outcome) {
  std::printf("%-4s %s\n", outcome ? "yes" : "NO", claim);
  return outcome;
}

constexpr std::int64_t capacity_bytes = 1 << 20;

bool keeps_contract() {
  auto const reports = take(hypic::check_store_contract(
      {.make = [](void*) -> std::unique_ptr<hypic::cache_store> { return std::make_unique<map_store>(capacity_bytes); },
       .capacity_bytes = capacity_bytes,
       .damage =
           [](void*, hypic::cache_store& store, hypic::lookup_request const& of) {
             return static_cast<map_store&>(store).damage(of.key, of.parts[0]);
           }}));
  return std::ranges::all_of(reports, [](auto const& clause) { return clause.outcome == hypic::clause_outcome::kept; });
}

}  // namespace

int main() {
  constexpr std::int32_t seam = 8;
  auto const a = document(100, 40), b = document(500, 24);
  hypic::prompt_span const question{.tokens = {7, 8, 9}};
  std::vector<hypic::prompt_span> const ab{a, b, question}, ba{b, a, question};

  map_store one(capacity_bytes), other(capacity_bytes);
  auto const cold_ab = toy::serve(one, ab, seam), cold_ba = toy::serve(other, ba, seam);
  auto const warm_ba = toy::serve(one, ba, seam), warm_ab = toy::serve(other, ab, seam);
  auto const direct_ab = serve_directly(ab), direct_ba = serve_directly(ba);
  // b stands second: with a seam as long as b nothing in this prompt lacks context, and a is still a hit.
  auto const whole_seam = toy::serve(one, ab, static_cast<std::int32_t>(b.tokens.size()));

  bool all = holds("the store keeps the contract", keeps_contract());
  for (auto const* cold : {&cold_ab, &cold_ba})
    all &= holds("a cold run computes both documents", cold->computed == 2 && cold->hits == 0);
  for (auto const* warm : {&warm_ab, &warm_ba})
    all &= holds("a warm run computes neither", warm->computed == 0 && warm->hits == 2);
  all &= holds("a, b: warm equals cold bit for bit", same_bits(warm_ab, cold_ab));
  all &= holds("b, a: warm equals cold bit for bit", same_bits(warm_ba, cold_ba));
  all &= holds("a, b: the first layer's state is the direct one", distance(warm_ab.state, direct_ab.state) < 1e-5);
  all &= holds("b, a: the first layer's state is the direct one", distance(warm_ba.state, direct_ba.state) < 1e-5);
  all &= holds("a whole seam beside a hit: everything is", whole_seam.hits == 1 && near(whole_seam, direct_ab));
  std::printf("short seams, keys and last row off by %.1e and %.1e\n", distance(warm_ba.keys, direct_ba.keys),
              distance(warm_ba.last, direct_ba.last));
  return all ? 0 : 1;
}
