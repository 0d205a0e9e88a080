// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/rebase_keys.hpp"

#include <algorithm>

#include "core/calls.hpp"
#include "core/parallel.hpp"
#include "core/shapes.hpp"

namespace hypic::inline v0 {

status rebase_keys(rotation const& turn, tensor_view<float const, 3> keys, tensor_view<float const, 3> values,
                   tensor_view<float, 3> keys_out, tensor_view<float, 3> values_out, host_exec const& ex) {
  auto const value_dim = values.extent[2];
  auto const checked = first_failure(expect_shape("keys", keys, keys.extent),
                                     expect_shape("values", values, {keys.extent[0], keys.extent[1], value_dim}),
                                     expect_shape("keys_out", keys_out, keys.extent),
                                     expect_shape("values_out", values_out, values.extent),
                                     expect_apart("keys_out overlaps an input", keys_out, keys, values),
                                     expect_apart("values_out overlaps an input", values_out, keys, values),
                                     expect_apart("values_out overlaps keys_out", values_out, keys_out));
  if (checked != status::ok) return checked;
  host_exec const inner{.workspace = {}, .threads = ex.threads};
  if (auto const s = rotate_rows(turn, keys, keys_out, inner); s != status::ok) return s;
  auto const told = tell(ex, "segment.rebase_keys");

  parallel_for(ex.threads, values.extent[1], [&](std::int64_t head, int) {
    for (std::int64_t row = 0; row < values.extent[0]; ++row) {
      std::copy_n(values[row][head].data, values.extent[2], values_out[row][head].data);
    }
  });
  return status::ok;
}

}  // namespace hypic::inline v0
