// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device_timing.cuh"
#include "hypic/algebra/rotation.hpp"
#include "hypic/cuda/angles.hpp"
#include "hypic/cuda/rebase_keys.hpp"
#include "oracle/recurrence_oracle.hpp"
#include "report.cuh"

namespace hypic_benchmarks {

/// One attention layer's cached keys and values, bf16, in spans of 2,048 rows, turned and copied into place: 2 heads of
/// 256 dimensions, 64 of them rotary.
class rebase_case {
 public:
  explicit rebase_case(int tokens) : tokens_(tokens) {
    plan_ = plan_rebase_keys(hypic::dtype::bf16, {heads, dim, dim, pairs, hypic::rotary_pairing::rotate_half}, {},
                             tokens / span_rows, span_rows);
    std::mt19937_64 random(9);
    std::normal_distribution<float> normal;
    auto const elements = static_cast<std::size_t>(tokens) * heads * dim;
    for (auto* values : {&keys_, &values_}) {
      values->resize(elements);
      for (auto& value : *values) value = __float2bfloat16(normal(random));
    }
    keys_out_ = std::make_shared<device_memory<half>>(elements);
    values_out_ = std::make_shared<device_memory<half>>(elements);
    frequencies_ = *hypic::plain_frequencies(2 * pairs, 10000.0);
    auto* const keys = arrays_.upload(keys_);
    auto* const values = arrays_.upload(values_);
    std::vector<hypic::rebase_span> spans;
    for (int start = 0; start < tokens; start += span_rows) {
      auto const turn = hypic::make_rotation({.frequencies = frequencies_}, offset + start);
      std::vector<float> angles(2 * pairs);
      expect_ok(write_angles(turn, angles));
      auto const first = static_cast<std::size_t>(start) * heads * dim;
      spans.push_back({.keys = keys + first,
                       .values = values + first,
                       .rows = span_rows,
                       .angles = arrays_.upload(angles),
                       .keys_out = keys_out_->data(),
                       .values_out = values_out_->data(),
                       .first_position = start});
    }
    spans_ = arrays_.upload(spans);
  }

  row time(std::string name) {
    double const ms = median_ms(
        [&](cudaStream_t stream) { expect_ok(rebase_keys(plan_, spans_, {.stream = hypic::stream_ref{stream}})); });
    return {.name = std::move(name),
            .shape = std::to_string(tokens_) + " rows, 2 heads, D 256, 64 rotary, with V",
            .ms = ms,
            .error = error(),
            .bytes = 8.0 * static_cast<double>(keys_.size()),
            .flop = 6.0 * pairs * heads * tokens_};
  }

 private:
  static constexpr int heads = 2;
  static constexpr int dim = 256;
  static constexpr int pairs = 32;
  static constexpr int span_rows = 2048;
  static constexpr int offset = 1000;  // the spans' cached positions start elsewhere
  using half = __nv_bfloat16;

  /// Keys of some rows against their turn in fp64; infinite where a value was not copied bit for bit.
  double error() const {
    double worst = 0.0;
    for (int const token : {0, tokens_ / 2 + 1, tokens_ - 1}) {
      for (int head = 0; head < heads; ++head) {
        auto const first = static_cast<std::size_t>(token * heads + head) * dim;
        std::vector<double> key;
        for (std::size_t d = 0; d < dim; ++d) key.push_back(static_cast<double>(__bfloat162float(keys_[first + d])));
        auto const start = token / span_rows * span_rows;
        auto const wanted = oracle::turned(key, frequencies_, false, offset + start);
        std::vector<float> found;
        for (half const value : keys_out_->read(first, dim)) found.push_back(__bfloat162float(value));
        worst = std::max(worst, relative_error(found, wanted));
        auto const copied = values_out_->read(first, dim);
        for (std::size_t d = 0; d < dim; ++d)
          if (__bfloat162float(copied[d]) != __bfloat162float(values_[first + d])) return INFINITY;
      }
    }
    return worst;
  }

  int tokens_;
  hypic::rebase_keys_plan plan_;
  std::vector<half> keys_, values_;
  std::vector<double> frequencies_;
  std::shared_ptr<device_memory<half>> keys_out_, values_out_;
  hypic::rebase_span* spans_ = nullptr;
  device_arrays arrays_;
};

}  // namespace hypic_benchmarks
