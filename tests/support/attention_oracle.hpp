// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

/// Softmax attention of one query in fp64, as textbooks state it: all scores, then the largest, then the sums. It uses
/// nothing of the library.
namespace oracle {

struct attention_rule {
  double scale = 1.0;
  double soft_cap = 0.0;   ///< 0: none
  std::size_t window = 0;  ///< keys seen, the own one included; 0: all before it
  std::optional<double> sink{};
};

struct attended {
  std::vector<double> o;
  double lse = 0.0;
};

/// The query at `position` over keys 0 .. position. `key(j)` and `value(j)` give pointers to the elements of row j.
template <class Key, class Value>
attended attend(attention_rule const& rule, float const* q, std::size_t key_dim, std::size_t value_dim,
                std::size_t position, Key key, Value value) {
  std::size_t const first = rule.window > 0 && position + 1 > rule.window ? position + 1 - rule.window : 0;
  std::vector<double> scores;
  for (std::size_t j = first; j <= position; ++j) {
    double score = 0.0;
    for (std::size_t d = 0; d < key_dim; ++d) score += static_cast<double>(q[d]) * static_cast<double>(key(j)[d]);
    score *= rule.scale;
    if (rule.soft_cap > 0.0) score = rule.soft_cap * std::tanh(score / rule.soft_cap);
    scores.push_back(score);
  }
  double largest = rule.sink.value_or(-std::numeric_limits<double>::infinity());
  for (double const score : scores) largest = std::max(largest, score);

  double sum = rule.sink ? std::exp(*rule.sink - largest) : 0.0;
  attended result{std::vector<double>(value_dim, 0.0)};
  for (std::size_t j = first; j <= position; ++j) {
    double const weight = std::exp(scores[j - first] - largest);
    sum += weight;
    for (std::size_t d = 0; d < value_dim; ++d) result.o[d] += weight * static_cast<double>(value(j)[d]);
  }
  for (double& x : result.o) x /= sum;
  result.lse = largest + std::log(sum);
  return result;
}

}  // namespace oracle
