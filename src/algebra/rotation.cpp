// SPDX-License-Identifier: Apache-2.0
#include "hypic/algebra/rotation.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numbers>
#include <utility>

#include "core/calls.hpp"
#include "core/parallel.hpp"
#include "core/shapes.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t rows_per_task = 32;

bool positive(double value) noexcept { return std::isfinite(value) && value > 0.0; }

status check_frequencies(std::int64_t rotary_dim, double base, double factor) noexcept {
  if (rotary_dim < 2) return {status::invalid_argument, "rotary_dim", rotary_dim, status::relation::at_least, 2};
  if (rotary_dim % 2 != 0)
    return {status::invalid_argument, "rotary_dim", rotary_dim, status::relation::multiple_of, 2};
  if (!positive(base)) return {status::invalid_argument, "base"};
  if (!positive(factor)) return {status::invalid_argument, "factor"};
  return status::ok;
}

/// One frequency a pair: frequency_of(pair).
template <class Fn>
result<std::vector<double>> make_frequencies(std::int64_t rotary_dim, Fn const& frequency_of) {
  try {
    std::vector<double> frequencies(static_cast<std::size_t>(rotary_dim / 2));
    for (double pair = 0.0; double& frequency : frequencies) frequency = frequency_of(pair++);
    return frequencies;
  } catch (std::exception const&) {
    return {status::out_of_memory};
  }
}

double plain_frequency(std::int64_t rotary_dim, double base, double pair) noexcept {
  return std::pow(base, -2.0 * pair / static_cast<double>(rotary_dim));
}

/// The two dimensions of pair `index`.
std::pair<std::int64_t, std::int64_t> pair_of(rotary_pairing pairing, std::int64_t pairs, std::int64_t index) noexcept {
  if (pairing == rotary_pairing::interleaved) return {2 * index, 2 * index + 1};
  return {index, index + pairs};
}

std::int64_t pairs_of(rotation const& turn) noexcept { return static_cast<std::int64_t>(turn.cosine.size()); }

status check_turn(rotation const& turn, std::int64_t dim) noexcept {
  auto const sines = static_cast<std::int64_t>(turn.sine.size());
  if (sines != pairs_of(turn))
    return {status::invalid_shape, "turn", sines, status::relation::equal_to, pairs_of(turn)};
  if (2 * sines > dim) return {status::invalid_shape, "turn", 2 * sines, status::relation::at_most, dim};
  return status::ok;
}

void turn_vector(rotation const& turn, std::int64_t dim, float const* in, float* out) noexcept {
  auto const pairs = pairs_of(turn);
  float const* const cosine = turn.cosine.data();
  float const* const sine = turn.sine.data();
  for (std::int64_t i = 0; i < pairs; ++i) {
    auto const [one, two] = pair_of(turn.pairing, pairs, i);
    float const x = in[one];
    float const y = in[two];
    out[one] = x * cosine[i] - y * sine[i];
    out[two] = y * cosine[i] + x * sine[i];
  }
  for (std::int64_t d = 2 * pairs; d < dim; ++d) out[d] = in[d];
}

void turn_state(rotation const& turn, tensor_view<float const, 2> in, tensor_view<float, 2> out) noexcept {
  auto const [key_dim, value_dim] = in.extent;
  auto const pairs = pairs_of(turn);
  for (std::int64_t i = 0; i < pairs; ++i) {
    auto const [one, two] = pair_of(turn.pairing, pairs, i);
    float const cosine = turn.cosine[static_cast<std::size_t>(i)];
    float const sine = turn.sine[static_cast<std::size_t>(i)];
    for (std::int64_t v = 0; v < value_dim; ++v) {
      float const x = in(one, v);
      float const y = in(two, v);
      out(one, v) = x * cosine - y * sine;
      out(two, v) = y * cosine + x * sine;
    }
  }
  for (std::int64_t d = 2 * pairs; d < key_dim; ++d) {
    for (std::int64_t v = 0; v < value_dim; ++v) out(d, v) = in(d, v);
  }
}

}  // namespace

result<std::vector<double>> plain_frequencies(std::int64_t rotary_dim, double base) {
  return linear_frequencies(rotary_dim, base, 1.0);
}

result<std::vector<double>> linear_frequencies(std::int64_t rotary_dim, double base, double factor) {
  if (auto const s = check_frequencies(rotary_dim, base, factor); s != status::ok) return s;
  return make_frequencies(rotary_dim, [&](double pair) { return plain_frequency(rotary_dim, base, pair) / factor; });
}

result<std::vector<double>> ntk_frequencies(std::int64_t rotary_dim, double base, double factor) {
  if (auto const s = check_frequencies(rotary_dim, base, factor); s != status::ok) return s;
  auto const dim = static_cast<double>(rotary_dim);
  // A single pair has frequency 1 whatever the base, and no exponent that would stretch it.
  double const stretched = rotary_dim == 2 ? base : base * std::pow(factor, dim / (dim - 2.0));
  return make_frequencies(rotary_dim, [&](double pair) { return plain_frequency(rotary_dim, stretched, pair); });
}

result<std::vector<double>> yarn_frequencies(std::int64_t rotary_dim, double base, double factor,
                                             double original_positions, double beta_fast, double beta_slow) {
  if (auto const s = check_frequencies(rotary_dim, base, factor); s != status::ok) return s;
  if (base <= 1.0) return status{status::invalid_argument, "base"};
  if (!positive(beta_slow)) return status{status::invalid_argument, "beta_slow"};
  if (!std::isfinite(beta_fast) || beta_fast < beta_slow) return status{status::invalid_argument, "beta_fast"};
  // Below this not even the fastest pair, which turns one radian a token, makes beta_slow turns.
  double const radians_slow = 2.0 * std::numbers::pi * beta_slow;
  if (!std::isfinite(original_positions) || original_positions <= radians_slow) {
    return status{status::invalid_argument, "original_positions"};
  }

  auto const dim = static_cast<double>(rotary_dim);
  auto const pair_that_turns = [&](double turns) {
    return dim * std::log(original_positions / (2.0 * std::numbers::pi * turns)) / (2.0 * std::log(base));
  };
  double const last = std::min(std::ceil(pair_that_turns(beta_slow)), dim - 1.0);
  double const first = std::clamp(std::floor(pair_that_turns(beta_fast)), 0.0, last);
  double const length = std::max(last - first, 1e-3);  // a ramp without length is a step
  return make_frequencies(rotary_dim, [&](double pair) {
    double const plain = plain_frequency(rotary_dim, base, pair);
    double const interpolated = std::clamp((pair - first) / length, 0.0, 1.0);
    return interpolated * (plain / factor) + (1.0 - interpolated) * plain;
  });
}

rotation make_rotation(rotary_embedding const& rotary, std::int64_t positions) {
  rotation turn;
  turn.pairing = rotary.pairing;
  if (positions == 0) return turn;
  turn.cosine.reserve(rotary.frequencies.size());
  turn.sine.reserve(rotary.frequencies.size());
  for (double const frequency : rotary.frequencies) {
    double const angle = static_cast<double>(positions) * frequency;
    turn.cosine.push_back(static_cast<float>(std::cos(angle)));
    turn.sine.push_back(static_cast<float>(std::sin(angle)));
  }
  return turn;
}

status rotate_rows(rotation const& turn, tensor_view<float const, 3> in, tensor_view<float, 3> out,
                   host_exec const& ex) {
  auto const checked = first_failure(expect_shape("in", in, in.extent), expect_shape("out", out, in.extent),
                                     check_turn(turn, in.extent[2]), expect_exec(ex, 0));
  if (checked != status::ok) return checked;
  auto const told = tell(ex, "algebra.rotate_rows");

  auto const tasks = (in.extent[0] + rows_per_task - 1) / rows_per_task;
  parallel_for(ex.threads, tasks, [&](std::int64_t task, int) {
    auto const end = std::min((task + 1) * rows_per_task, in.extent[0]);
    for (std::int64_t row = task * rows_per_task; row < end; ++row) {
      for (std::int64_t head = 0; head < in.extent[1]; ++head) {
        turn_vector(turn, in.extent[2], in[row][head].data, out[row][head].data);
      }
    }
  });
  return status::ok;
}

status rebase(rotation const& turn, tensor_view<float const, 3> in, tensor_view<float, 3> out, host_exec const& ex) {
  auto const checked = first_failure(expect_shape("in", in, in.extent, last_stride::any),
                                     expect_shape("out", out, in.extent, last_stride::any),
                                     check_turn(turn, in.extent[1]), expect_exec(ex, 0));
  if (checked != status::ok) return checked;
  auto const told = tell(ex, "algebra.rebase");

  parallel_for(ex.threads, in.extent[0], [&](std::int64_t head, int) { turn_state(turn, in[head], out[head]); });
  return status::ok;
}

}  // namespace hypic::inline v0
