// SPDX-License-Identifier: Apache-2.0
#include "hypic/algebra/tail.hpp"

#include <algorithm>

#include "core/shapes.hpp"

namespace hypic::inline v0 {
namespace {

status check(tensor_view<float const, 2> previous, std::int64_t tokens, tensor_view<float const, 2> fresh,
             tensor_view<float const, 2> cached, tensor_view<float, 2> out) noexcept {
  auto const [length, channels] = out.extent;
  auto const forwarded = fresh.extent[0];
  if (tokens < 0) return {status::invalid_shape, "tokens", tokens, status::relation::at_least, 0};
  if (forwarded > tokens) {
    return status{status::invalid_shape, "fresh", forwarded, status::relation::at_most, tokens}.in(
        status::measure::extent, 0);
  }
  if (length == 0) return status::ok;  // a convolution of length 1 has no tail

  auto const checked =
      first_failure(expect_shape("out", out, out.extent), expect_shape("previous", previous, out.extent),
                    expect_shape("fresh", fresh, {forwarded, channels}),
                    expect_apart("out overlaps an input", out, previous, fresh, cached));
  if (checked != status::ok || (forwarded == tokens && cached.empty())) return checked;
  return expect_shape("cached", cached, {std::min(length, tokens), channels});
}

}  // namespace

status continue_tail(tensor_view<float const, 2> previous, std::int64_t tokens, tensor_view<float const, 2> fresh,
                     tensor_view<float const, 2> cached, tensor_view<float, 2> out) {
  if (auto const s = check(previous, tokens, fresh, cached, out); s != status::ok) return s;

  auto const length = out.extent[0];
  auto const first_cached = tokens - std::min(length, tokens);
  for (std::int64_t row = 0; row < length; ++row) {
    auto const token = tokens - length + row;  // of the span; those below 0 stand before it
    auto const source = token < 0                 ? previous[length + token]
                        : token < fresh.extent[0] ? fresh[token]
                                                  : cached[token - first_cached];
    std::copy_n(source.data, out.extent[1], out[row].data);
  }
  return status::ok;
}

}  // namespace hypic::inline v0
