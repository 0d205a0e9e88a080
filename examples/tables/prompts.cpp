// SPDX-License-Identifier: Apache-2.0
#include "tables/prompts.hpp"

#include <algorithm>
#include <numeric>

#include "engine/status.hpp"
#include "hypic/store/key.hpp"

namespace hypic_tables {
namespace {

/// An order of [0, count) other than 0, 1, 2, ... where there is one.
std::vector<std::size_t> shuffled_order(std::size_t count, random_numbers& numbers) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  numbers.shuffle(order);
  if (count > 1 && std::is_sorted(order.begin(), order.end()))
    std::rotate(order.begin(), order.begin() + 1, order.end());
  return order;
}

/// Lengths of a mixed prompt: positive ones are cached, negative ones fresh.
std::vector<std::int64_t> mixed_lengths(std::int64_t number) {
  if (number % 2 == 1) return {96, -7, 1, 5, -1, 230, 8, 9, -23, 140, -24};
  return {-11, 3, 64, -2, 150, 17, 1, 260, 40, -24};
}

}  // namespace

hypic_engine::document_prompt make_document_prompt(text const& from, std::int64_t documents,
                                                   std::int64_t document_tokens, std::int64_t query_tokens,
                                                   std::uint64_t seed) {
  random_numbers numbers(seed);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(documents), document_tokens);
  auto const asked = static_cast<std::size_t>(numbers.below(documents));
  lengths[asked] += query_tokens;
  auto pieces = cut(from, lengths, numbers);

  hypic_engine::document_prompt prompt;
  auto const end = pieces[asked].begin() + document_tokens;
  prompt.query.assign(end, pieces[asked].end());
  pieces[asked].erase(end, pieces[asked].end());
  auto const order = shuffled_order(pieces.size(), numbers);
  prompt.unshuffled.resize(pieces.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    prompt.documents.push_back(pieces[order[place]]);
    prompt.unshuffled[order[place]] = place;
  }
  return prompt;
}

hypic::prompt_span cached_span_of(hypic_engine::model const& with, token_list tokens) {
  auto const key = hypic_engine::take(hypic::make_record_key({.tokens = tokens, .model = with.fingerprint()}),
                                      "the key of a segment");
  return {hypic::span_kind::cached, std::move(tokens), key};
}

hypic::prompt_span fresh_span_of(token_list tokens) { return {hypic::span_kind::fresh, std::move(tokens), {}}; }

std::vector<hypic::prompt_span> make_mixed_prompt(hypic_engine::model const& with, text const& from,
                                                  std::int64_t number, std::uint64_t seed) {
  random_numbers numbers(seed);
  auto const kinds = mixed_lengths(number);
  auto lengths = kinds;
  for (auto& length : lengths) length = std::abs(length);
  auto const pieces = cut(from, lengths, numbers);
  std::vector<hypic::prompt_span> spans;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    spans.push_back(kinds[i] > 0 ? cached_span_of(with, pieces[i]) : fresh_span_of(pieces[i]));
  auto const again = std::find_if(kinds.begin(), kinds.end(), [](auto length) { return length >= 64; });
  auto const repeated = spans[static_cast<std::size_t>(again - kinds.begin())];
  spans.insert(spans.end() - 1, repeated);
  return spans;
}

}  // namespace hypic_tables
