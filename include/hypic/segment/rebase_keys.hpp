// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hypic/algebra/rotation.hpp"

namespace hypic::inline v0 {

/// Puts cached keys and values into place in memory that the request owns: keys turn from their canonical positions to
/// their true ones, values are copied. The canonical copies are only read.
/// Shapes:     keys [rows, kv_heads, D], values [rows, kv_heads, Dv], outputs alike; D >= rotary_dim. No overlap.
/// Accuracy:   1e-6 relative to the fp64 turn of the cached keys, to position 1e6.
/// Guarantees: no allocation; the same bits for any number of threads.
/// Errors:     invalid_shape, also where an output starts where an input or the other output does.
HYPIC_API status rebase_keys(rotation const& turn, tensor_view<float const, 3> keys, tensor_view<float const, 3> values,
                             tensor_view<float, 3> keys_out, tensor_view<float, 3> values_out, host_exec const& ex);

}  // namespace hypic::inline v0
