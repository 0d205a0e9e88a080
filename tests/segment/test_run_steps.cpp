// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hypic/segment/laws.hpp"
#include "hypic/segment/run_steps.hpp"
#include "support/layer_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

// Kimi delta attention by its steps, and families that each break one promise.
struct delta_steps {
  static constexpr operator_form form = operator_form::dense;
  struct row {
    float const* key;
    float const* value;
    float const* log_decay;
    double beta;
  };
  static void transition(row const& r, step_state s) noexcept {
    for (std::int64_t c = 0; c < s.columns; ++c) {
      double dot = 0.0;
      for (std::int64_t d = 0; d < s.key_dim; ++d) {
        s(d, c) *= std::exp(static_cast<double>(r.log_decay[d]));
        dot += static_cast<double>(r.key[d]) * s(d, c);
      }
      for (std::int64_t d = 0; d < s.key_dim; ++d) s(d, c) -= r.beta * static_cast<double>(r.key[d]) * dot;
    }
  }
  static void update(row const& r, step_state s) noexcept {
    for (std::int64_t d = 0; d < s.key_dim; ++d)
      for (std::int64_t c = 0; c < s.columns; ++c)
        s(d, c) += r.beta * static_cast<double>(r.key[d]) * static_cast<double>(r.value[c]);
  }
};
static_assert(step_family<delta_steps> && !step_family<retnet> && !step_family<gated_deltanet> && !step_family<int>);

struct affine : delta_steps {
  static void transition(row const& r, step_state s) noexcept {
    delta_steps::transition(r, s);
    s(0, 0) += 0.5;
  }
};
struct of_the_squares : delta_steps {
  static void transition(row const& r, step_state s) noexcept {
    delta_steps::transition(r, s);
    for (std::int64_t c = 0; c < s.columns; ++c) s(0, c) *= std::abs(s(0, c));
  }
};
struct from_the_right : delta_steps {
  static void transition(row const& r, step_state s) noexcept {
    delta_steps::transition(r, s);
    for (std::int64_t d = 0; d < s.key_dim; ++d) s(d, 0) += 0.5 * s(d, s.columns - 1);
  }
};
struct decaying_update : delta_steps {
  static void update(row const& r, step_state s) noexcept {
    delta_steps::update(r, s);
    s(0, 0) *= 0.9;
  }
};
struct not_a_number : delta_steps {
  static void transition(row const& r, step_state s) noexcept {
    delta_steps::transition(r, s);
    s(0, 0) = std::nan("");
  }
};

struct inputs {
  static constexpr std::int64_t tokens = 12;
  state_dims dims{1, 2, 6, 5};
  layer_inputs all{{.family = family_id::kda, .dims = dims, .rows = tokens, .seed = 7}};

  delta_steps::row operator()(std::int64_t t, std::int32_t head) const {
    auto const rows = all.rows.view();
    return {&rows.k(t, dims.key_head_of(head), 0), &rows.v(t, head, 0), &rows.gates(t, head, 0),
            static_cast<double>(rows.beta(t, head))};
  }
};

std::vector<double> widened(std::vector<float> const& values) { return {values.begin(), values.end()}; }

template <class F>
std::vector<std::string> broken_laws() {
  inputs const in;
  std::vector<std::string> broken;
  for (auto const& report : check_laws<F>(in.dims, inputs::tokens, in))
    if (!report.holds()) broken.emplace_back(report.law);
  return broken;
}

}  // namespace

TEST_CASE("A family that keeps its promises passes every law", "[segment][laws]") {
  CHECK(broken_laws<delta_steps>().empty());
}

TEST_CASE("Each broken promise fails the law that names it first", "[segment][laws]") {
  CHECK(broken_laws<affine>().front() == "a transition is linear");
  CHECK(broken_laws<of_the_squares>().front() == "a transition is linear");
  CHECK(broken_laws<from_the_right>().front() == "columns go alone");
  CHECK(broken_laws<decaying_update>() == std::vector<std::string>{"an update does not read the state",
                                                                   "a split run composes",
                                                                   "an operator stands for its run"});
  CHECK(broken_laws<not_a_number>() == std::vector<std::string>{"a transition is linear", "columns go alone",
                                                                "a split run composes",
                                                                "an operator stands for its run"});
}

TEST_CASE("Outputs, states and operators of steps equal the sequential oracle's", "[segment][run_steps]") {
  inputs const in;
  layer_oracle run(family_id::kda, in.dims, {});
  tensor<3> q({inputs::tokens, in.dims.key_heads, in.dims.key_dim});
  for_each_element(q.view(),
                   [](float& x, std::int64_t i) { x = static_cast<float>(std::cos(static_cast<double>(i))); });
  for (std::int64_t t = 0; t < inputs::tokens; ++t) run.step(in.all.rows.view(), t);
  summary_data wanted(operator_form::dense, in.dims);
  run.round_into(wanted.view());

  tensor<3> o({inputs::tokens, in.dims.value_heads, in.dims.value_dim}, layout::gaps);
  tensor<3> states({in.dims.value_heads, in.dims.key_dim, in.dims.value_dim}, layout::transposed);
  states.fill(0.0f);
  summary_data found(operator_form::dense, in.dims, layout::gaps);
  std::vector<std::byte> memory(to_index(step_workspace_bytes(in.dims)) + 1, std::byte{0xff});
  std::span<std::byte> const misaligned{memory.data() + 1, memory.size() - 1};
  REQUIRE(run_steps<delta_steps>(in.dims, inputs::tokens, in, q.view(),
                                 {.o = o.view(), .states = states.view(), .summary = found.view()},
                                 {.workspace = misaligned}) == status::ok);
  CHECK(relative_error(found.operators.packed(), widened(wanted.operators.packed())) <= 1e-6);
  CHECK(relative_error(found.end_states.packed(), widened(wanted.end_states.packed())) <= 1e-6);
  CHECK(same_bits(states.packed(), found.end_states.packed()));
  CHECK((o.gaps_intact() && states.gaps_intact() && found.gaps_intact()));
  for (std::int32_t head = 0; head < in.dims.value_heads; ++head)
    for (std::int32_t c = 0; c < in.dims.value_dim; ++c) {
      double sum = 0.0;
      for (std::int32_t d = 0; d < in.dims.key_dim; ++d)
        sum += static_cast<double>(q.view()(inputs::tokens - 1, 0, d)) *
               static_cast<double>(wanted.end_states.view()(head, d, c));
      CHECK(static_cast<double>(o.view()(inputs::tokens - 1, head, c)) == Approx(sum).epsilon(1e-5).margin(1e-6));
    }
}

TEST_CASE("A run of steps refuses what does not fit, and names it", "[segment][run_steps]") {
  inputs const in;
  tensor<3> q({inputs::tokens, 1, in.dims.key_dim}), o({inputs::tokens, 2, in.dims.value_dim + 1});
  summary_data scalar(operator_form::scalar, in.dims);
  std::vector<std::byte> memory(to_index(step_workspace_bytes(in.dims)));
  std::span<std::byte> const room{memory};
  auto const outcome = [&](std::int64_t tokens, step_outputs const& out, std::span<std::byte> workspace) {
    return run_steps<delta_steps>(in.dims, tokens, in, q.view(), out, {.workspace = workspace});
  };
  CHECK(outcome(-1, {}, room) == status::invalid_shape);
  CHECK(std::string(outcome(inputs::tokens, {.o = o.view()}, room).argument()) == "out.o");
  CHECK(std::string(outcome(inputs::tokens, {.summary = scalar.view()}, room).argument()) == "out.summary.operators");
  CHECK(outcome(inputs::tokens, {}, room.first(room.size() - 1)) == status::workspace_too_small);
  CHECK(outcome(inputs::tokens, {}, room) == status::ok);
}
