// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint.hpp"
#include "engine/serving.hpp"
#include "engine/synthetic.hpp"

/// What tests of the running engine share.
namespace engine_test {

using tokens = std::vector<std::int32_t>;
using logit_rows = std::vector<std::vector<double>>;

/// `count` bytes of a shipped text, from `first` on, as tokens. Errors: a std::runtime_error where it is shorter.
tokens text_tokens(std::string const& file, std::size_t first, std::size_t count);

/// One piece after the other.
tokens joined(std::vector<tokens> const& pieces);

/// A model that tests of the engine's laws run on.
struct named_model {
  std::string name;
  hypic_engine::checkpoint weights;
  hypic_engine::model runs;
};

/// The models of this test program: one at least a family.
std::vector<named_model> const& models_under_test();

named_model make_named(std::string name, hypic_engine::checkpoint weights, std::int32_t head_rows = 8);

/// The checkpoint that is shipped as "retnet", "gla" or "gdn".
hypic_engine::checkpoint shipped_checkpoint(std::string const& name);

/// A synthetic checkpoint, written and loaded.
hypic_engine::checkpoint synthetic_checkpoint(synthetic::options const& what);

/// Whether all bits are the same.
bool same_bits(std::vector<float> const& left, std::vector<float> const& right);
bool same_bits(hypic_engine::buffer const& left, hypic_engine::buffer const& right);
/// The states and tails of a slot, one after the other.
std::vector<float> state_of(hypic_engine::model const& with, hypic_engine::request_memory& memory,
                            std::int64_t slot = 0);
/// The first `positions` keys and values of a slot, one layer after the other.
std::vector<float> keys_of(hypic_engine::model const& with, hypic_engine::request_memory& memory,
                           std::int64_t positions, std::int64_t slot = 0);

/// The largest difference of two rows; infinity where one holds a NaN or the lengths differ.
double difference(std::span<float const> left, std::span<float const> right);
/// A row of logits.
std::span<float const> row_of(hypic_engine::buffer const& logits, std::int64_t row);
/// The largest difference of the last left.rows() rows of both.
double difference(hypic_engine::buffer const& left, hypic_engine::buffer const& right);
/// And divided by max(1, |right|), element by element; rows of `left` from `first` of `right` on.
double scaled_difference(hypic_engine::buffer const& left, logit_rows const& right, std::size_t first = 0);

/// |left - right| / |right|, Frobenius.
double relative_difference(std::vector<float> const& left, std::vector<float> const& right);

}  // namespace engine_test
