// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/rebase_keys.hpp"

#include <map>
#include <vector>

#include "adapter/c_api/c_api.hpp"
#include "core/calls.hpp"

using namespace hypic::c_api;
using hypic::expect_shape;
using hypic::status;

namespace {

template <class Layer>
hypic::rotation turn_of(Layer const& layer, std::int64_t positions) {
  return layer.rotary ? hypic::make_rotation(*layer.rotary, positions) : hypic::rotation{};
}

void const* start_of(hypic::tensor_view<float, 3> const& view) noexcept { return view.empty() ? nullptr : view.data; }

struct key_move {
  using layer = hypic::attention_layer;
  using given = hypic_moved_keys;

  hypic::rotation turn;
  hypic::tensor_view<float, 3> keys{}, values{}, keys_out{}, values_out{};

  status read(given const& from, layer const& shape) {
    turn = turn_of(shape, from.positions);
    if (auto const s =
            hypic::first_failure(view_of(from.keys, "moves.keys", keys), view_of(from.values, "moves.values", values),
                                 view_of(from.keys_out, "moves.keys_out", keys_out),
                                 view_of(from.values_out, "moves.values_out", values_out));
        s != status::ok)
      return s;
    auto const rows = keys.extent[0];
    return hypic::first_failure(
        expect_shape("moves.keys", keys, {rows, shape.kv_heads, shape.key_dim}),
        expect_shape("moves.values", values, {rows, shape.kv_heads, shape.value_dim}),
        expect_shape("moves.keys_out", keys_out, {rows, shape.kv_heads, shape.key_dim}),
        expect_shape("moves.values_out", values_out, {rows, shape.kv_heads, shape.value_dim}),
        hypic::expect_apart("moves.keys_out overlaps an input", keys_out, keys, values),
        hypic::expect_apart("moves.values_out overlaps another tensor", values_out, keys, values, keys_out));
  }
  std::vector<void const*> inputs() const { return {start_of(keys), start_of(values)}; }
  std::vector<void const*> outputs() const { return {start_of(keys_out), start_of(values_out)}; }
  status run(hypic::host_exec const& ex) const {
    return hypic::rebase_keys(turn, keys, values, keys_out, values_out, ex);
  }
};

struct state_move {
  using layer = hypic::linear_layer;
  using given = hypic_moved_states;

  hypic::rotation turn;
  hypic::tensor_view<float, 3> in{}, out{};

  status read(given const& from, layer const& shape) {
    turn = turn_of(shape, from.positions);
    decltype(in.extent) const wanted{shape.dims.value_heads, shape.dims.key_dim, shape.dims.value_dim};
    if (auto const s = hypic::first_failure(view_of(from.in, "moves.in", in), view_of(from.out, "moves.out", out));
        s != status::ok)
      return s;
    return hypic::first_failure(expect_shape("moves.in", in, wanted, hypic::last_stride::any),
                                expect_shape("moves.out", out, wanted, hypic::last_stride::any));
  }
  std::vector<void const*> inputs() const { return {start_of(in)}; }
  std::vector<void const*> outputs() const { return {start_of(out)}; }
  status run(hypic::host_exec const& ex) const { return hypic::rebase(turn, in, out, ex); }
};

/// invalid_shape where an output of one move starts where a tensor of another does: their order has no meaning.
template <class Move>
status expect_apart(std::vector<Move> const& moves) {
  std::map<void const*, std::size_t> written;
  for (std::size_t i = 0; i < moves.size(); ++i)
    for (auto const* const at : moves[i].outputs())
      if (at != nullptr && !written.emplace(at, i).second)
        return {status::invalid_shape, "moves: two outputs that are one"};
  for (std::size_t i = 0; i < moves.size(); ++i) {
    for (auto const* const at : moves[i].inputs()) {
      auto const found = written.find(at);
      if (found != written.end() && found->second != i)
        return {status::invalid_shape, "moves: an output that is another's input"};
    }
  }
  return status::ok;
}

/// Checks all moves, then makes them.
template <class Move>
hypic_status move_all(hypic_model const* model, std::int32_t layer, typename Move::given const* moves,
                      std::int64_t count, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}}); s != status::ok) return s;
    auto const* shape = find_layer<typename Move::layer>(*model, layer);
    if (shape == nullptr) return {status::invalid_argument, "layer: it is of another kind"};
    hypic::host_exec ex;
    std::vector<typename Move::given> given;
    if (auto const s = hypic::first_failure(exec_of(exec, ex), read_all(moves, count, "moves", given)); s != status::ok)
      return s;
    if (auto const s = hypic::expect_exec(ex, 0); s != status::ok) return s;
    std::vector<Move> made(given.size());
    for (std::size_t i = 0; i < given.size(); ++i)
      if (auto const s = made[i].read(given[i], *shape); s != status::ok) return s;
    if (auto const s = expect_apart(made); s != status::ok) return s;
    for (auto const& one : made)
      if (auto const s = one.run(ex); s != status::ok) return s;
    return status::ok;
  });
}

}  // namespace

extern "C" {

hypic_status hypic_rebase_keys(hypic_model const* model, int32_t layer, hypic_moved_keys const* moves, int64_t count,
                               hypic_exec const* exec) {
  return move_all<key_move>(model, layer, moves, count, exec);
}

hypic_status hypic_rebase(hypic_model const* model, int32_t layer, hypic_moved_states const* moves, int64_t count,
                          hypic_exec const* exec) {
  return move_all<state_move>(model, layer, moves, count, exec);
}

}  // extern "C"
