// SPDX-License-Identifier: Apache-2.0
// The kernels of every instruction set, side by side: the library itself picks one and never shows the others.
#include "core/matrix.cpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "hypic/core/instruction_set.hpp"

namespace hypic::inline v0 {
namespace {

template <class T>
std::vector<T> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(static_cast<std::size_t>(count));
  for (auto& x : values) x = static_cast<T>(normal(random));
  return values;
}

std::vector<vector_level> levels() {
  std::vector<vector_level> all;
  for (auto const level : {vector_level::bytes_16, vector_level::bytes_32, vector_level::bytes_64})
    if (level <= widest_level()) all.push_back(level);
  return all;
}

/// What `run(level, out)` leaves in `out` on each instruction set; the same bits are wanted of all.
template <class T, class Run>
void check_same_bits(std::vector<T> const& start, Run run) {
  auto wanted = start;
  run(vector_level::bytes_16, wanted);
  CHECK(std::memcmp(wanted.data(), start.data(), start.size() * sizeof(T)) != 0);
  for (auto const level : levels()) {
    auto found = start;
    run(level, found);
    CHECK(std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(T)) == 0);
  }
}

template <class Kernel, class... Arguments>
void call(vector_level level, Arguments... arguments) {
  function_for<Kernel, Arguments...>(level)(arguments...);
}

TEST_CASE("Every instruction set gives the same bits, whatever the widths", "[core]") {
  for (std::int64_t const columns : {1, 3, 7, 8, 15, 16, 31, 48, 64, 100, 128}) {
    CAPTURE(columns);
    constexpr std::int64_t rows = 13, inner = 37;
    auto const left = random_values<float>(rows * inner, 1);
    auto const right = random_values<float>(inner * columns, 2);
    auto const out = random_values<float>(rows * columns, 3);
    for (auto const mode : {store_mode::set, store_mode::add}) {
      check_same_bits(out, [&](vector_level level, std::vector<float>& to) {
        call<product_kernel>(level, rows, columns, inner, left_operand{left.data(), inner, 1},
                             matrix_view<float const>{right.data(), columns}, matrix_view<float>{to.data(), columns},
                             mode);
      });
    }

    auto factors = random_values<double>(rows * inner, 10);
    for (double& x : factors) x = exact_factor(x);
    check_same_bits(random_values<double>(rows * columns, 11), [&](vector_level level, std::vector<double>& to) {
      call<exact_product_kernel>(level, rows, columns, inner, matrix_view<double const>{factors.data(), inner},
                                 matrix_view<float const>{right.data(), columns},
                                 matrix_view<double>{to.data(), columns});
    });

    auto const lower = random_values<double>(rows * rows, 12);
    auto const betas = random_values<double>(rows, 13);
    for (float const* const values : {out.data(), static_cast<float const*>(nullptr)}) {
      check_same_bits(random_values<double>(rows * columns, 14), [&](vector_level level, std::vector<double>& to) {
        call<solve_kernel>(level, rows, columns, matrix_view<double const>{lower.data(), rows}, betas.data(),
                           matrix_view<float const>{values, columns}, matrix_view<double>{to.data(), columns});
      });
    }

    auto const logs = random_values<float>(columns, 4);
    std::vector<float> losses(logs.size());
    for (std::size_t i = 0; i < logs.size(); ++i) losses[i] = -std::abs(logs[i]);
    check_same_bits(std::vector<double>(logs.size()), [&](vector_level level, std::vector<double>& to) {
      call<decays_kernel>(level, columns, static_cast<float const*>(losses.data()), to.data());
    });

    for (std::int64_t links = 1; links <= most_links; ++links) {
      auto const added = random_values<float>(links * columns, 5);
      decay_chain chain{links, {0.9, 0.8, 0.7, 0.6}, {}};
      for (std::int64_t i = 0; i < links; ++i) chain.added[i] = added.data() + i * columns;
      check_same_bits(random_values<float>(columns, 6), [&](vector_level level, std::vector<float>& to) {
        call<decayed_sum_kernel>(level, columns, static_cast<decay_chain const*>(&chain),
                                 static_cast<float const*>(to.data()), to.data());
      });
    }

    auto const keys = random_values<double>(inner * rows, 7);
    auto const updates = random_values<double>(inner * columns, 15);
    auto const decay = random_values<double>(rows, 8);
    check_same_bits(random_values<double>(rows * columns, 9), [&](vector_level level, std::vector<double>& to) {
      std::vector<float> rounded(to.size());
      state_columns const state{{to.data(), columns}, {rounded.data(), columns}};
      call<advance_kernel>(level, rows, columns, inner, matrix_view<double const>{keys.data(), rows},
                           matrix_view<double const>{updates.data(), columns}, decay.data(), std::int64_t{1}, state);
    });
  }
}

TEST_CASE("An exact factor is x to 2^-29, and its products with fp32 values are exact", "[core]") {
  auto const values = random_values<double>(1000, 1);
  auto const others = random_values<float>(1000, 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double const factor = exact_factor(values[i]);
    double const other = static_cast<double>(others[i]);
    CHECK(std::abs(factor - values[i]) <= 0x1p-29 * std::abs(values[i]));
    CHECK(std::fma(factor, other, -(factor * other)) == 0.0);
  }
  for (double const x : {0.0, 1.0, -0.75, 0x1.fffffep-100, -0x1p100}) CHECK(exact_factor(x) == x);
}

TEST_CASE("The instruction set has the name of what the kernels use", "[core]") {
  char const* const names[] = {"baseline", "avx2", "avx512"};
  CHECK(host_instruction_set() == std::string(names[static_cast<std::size_t>(widest_level())]));
}

}  // namespace
}  // namespace hypic::inline v0
