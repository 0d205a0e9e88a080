// SPDX-License-Identifier: Apache-2.0
#include "engine/compute.hpp"

#include <cblas.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <string_view>

namespace hypic_engine {
namespace {

/// Whether OpenBLAS uses its oldest kernels on a processor that runs newer ones.
bool blas_is_behind() {
#if defined(__x86_64__)
  return std::string_view(openblas_get_corename()) == "Prescott" && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

/// Gives a variable of the environment a value where it has none; whether it did.
bool set_default(char const* variable, char const* value) {
  return std::getenv(variable) == nullptr && ::setenv(variable, value, 0) == 0;
}

}  // namespace

rows_out buffer::columns(std::int64_t first, std::int64_t width) noexcept {
  return {data_.data() + first, {rows_, width}, {width_, 1}};
}

std::vector<row_block> cut_blocks(std::span<row_block const> runs) {
  constexpr std::int64_t longest = 128;
  std::vector<row_block> blocks;
  for (auto const& run : runs)
    for (std::int64_t done = 0; done < run.rows; done += longest)
      blocks.push_back({run.first + done, std::min(longest, run.rows - done)});
  return blocks;
}

void use_one_blas_thread() { openblas_set_num_threads(1); }

std::string blas_name() { return openblas_get_config(); }

void use_good_settings(char** words) {
  std::signal(SIGXFSZ, SIG_IGN);
  auto set = set_default("OMP_WAIT_POLICY", "passive");
  if (blas_is_behind()) set = set_default("OPENBLAS_CORETYPE", "Haswell") || set;
  if (set) ::execv("/proc/self/exe", words);  // goes on here where it fails
}

void multiply(rows_in in, matrix const& weights, rows_out out) {
  if (in.extent[0] == 0) return;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(in.extent[0]), static_cast<int>(weights.rows),
              static_cast<int>(weights.cols), 1.0f, in.data, static_cast<int>(in.stride[0]), weights.data.data(),
              static_cast<int>(weights.cols), 0.0f, out.data, static_cast<int>(out.stride[0]));
}

void rms_norm(rows_in in, std::span<float const> weight, double epsilon, rows_out out) {
  auto const width = in.extent[1];
  for (std::int64_t row = 0; row < in.extent[0]; ++row) {
    double squares = 0.0;
    for (std::int64_t c = 0; c < width; ++c) squares += static_cast<double>(in(row, c)) * in(row, c);
    auto const scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + epsilon));
    for (std::int64_t c = 0; c < width; ++c)
      out(row, c) = in(row, c) * scale * (weight.empty() ? 1.0f : weight[static_cast<std::size_t>(c)]);
  }
}

float sigmoid(float x) noexcept { return 1.0f / (1.0f + std::exp(-x)); }
float silu(float x) noexcept { return x * sigmoid(x); }

rotary_table::rotary_table(hypic::rotary_embedding const& rotary, std::span<std::int64_t const> positions)
    : pairs_(static_cast<std::int64_t>(rotary.frequencies.size())) {
  for (auto const position : positions) {
    for (auto const frequency : rotary.frequencies) {
      auto const angle = static_cast<double>(position) * frequency;
      cosine_.push_back(static_cast<float>(std::cos(angle)));
      sine_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

void rotary_table::turn(hypic::tensor_view<float, 3> heads, std::int64_t first_row) const {
  for (std::int64_t row = 0; row < heads.extent[0]; ++row) {
    auto const* const cosine = cosine_.data() + (first_row + row) * pairs_;
    auto const* const sine = sine_.data() + (first_row + row) * pairs_;
    for (std::int64_t head = 0; head < heads.extent[1]; ++head) {
      auto* const left = &heads(row, head, 0);
      auto* const right = left + pairs_;
      for (std::int64_t i = 0; i < pairs_; ++i) {
        auto const x = left[i];
        auto const y = right[i];
        left[i] = x * cosine[i] - y * sine[i];
        right[i] = y * cosine[i] + x * sine[i];
      }
    }
  }
}

std::vector<double> log_softmax(rows_in rows, std::int64_t row) {
  std::vector<double> logs(static_cast<std::size_t>(rows.extent[1]));
  std::copy_n(&rows(row, 0), logs.size(), logs.begin());
  auto const most = *std::max_element(logs.begin(), logs.end());
  double sum = 0.0;
  for (auto const logit : logs) sum += std::exp(logit - most);
  for (auto& logit : logs) logit -= most + std::log(sum);
  return logs;
}

}  // namespace hypic_engine
