// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <cmath>
#include <string>
#include <type_traits>

#include "hypic/algebra/summary.hpp"
#include "hypic/family/family.hpp"
#include "hypic/segment/seam_repair.hpp"
#include "hypic/segment/segment_prefill.hpp"
#include "support/layer_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

// Types that are almost families.
struct with_state : retnet {
  int member = 0;
};
struct without_form {
  [[maybe_unused]] static constexpr family_id id = family_id::retnet;
  [[maybe_unused]] static constexpr bool gate_per_channel = false;
  [[maybe_unused]] static constexpr bool delta_rule = false;
};
struct with_wrong_id {
  [[maybe_unused]] static constexpr char const* id = "retnet";
  [[maybe_unused]] static constexpr operator_form form = operator_form::scalar;
  [[maybe_unused]] static constexpr bool gate_per_channel = false;
  [[maybe_unused]] static constexpr bool delta_rule = false;
};
struct own_family {
  static constexpr family_id id = family_id::gla;
  static constexpr operator_form form = operator_form::diagonal;
  static constexpr bool gate_per_channel = true;
  static constexpr bool delta_rule = false;
};
static_assert(state_family<own_family>);
static_assert(!state_family<with_state> && !state_family<without_form> && !state_family<with_wrong_id>);
static_assert(!state_family<float> && !state_family<retnet&> && !state_family<retnet*> && !state_family<void>);

// Misuse does not compile: no entry point takes a type that is no family.
template <class F>
concept has_entry_points =
    requires(prefill_plan const& prefill, repair_plan const& repair, state_dims const& dims, host_exec const& ex) {
      segment_prefill<F>(prefill, query_rows_view{}, prefill_outputs{}, ex);
      seam_repair<F>(repair, query_rows_view{}, std::span<cached_span const>{}, repair_outputs{}, ex);
      compose<F>(dims, const_summary_view{}, const_summary_view{}, summary_view{}, ex);
      set_identity<F>(dims, summary_view{}, ex);
    };
static_assert(has_entry_points<retnet> && has_entry_points<gla> && has_entry_points<gated_deltanet> &&
              has_entry_points<kda>);
static_assert(!has_entry_points<int> && !has_entry_points<without_form> && !has_entry_points<with_state>);

// Constant rows cannot be written through, and a mutable view is a constant one but not the other way.
static_assert(std::is_convertible_v<summary_view, const_summary_view>);
static_assert(!std::is_convertible_v<const_summary_view, summary_view>);
static_assert(std::is_convertible_v<rows_view, const_rows_view>);
static_assert(!std::is_convertible_v<const_rows_view, rows_view>);

TEMPLATE_TEST_CASE("A family's run-time name leads back to its type", "[family]", retnet, gla, gated_deltanet, kda) {
  STATIC_REQUIRE(state_family<TestType>);
  CHECK(with_family(TestType::id, [](auto found) { return std::is_same_v<decltype(found), TestType>; }));
}

TEST_CASE("Run-time names keep the values that records carry", "[family]") {
  STATIC_REQUIRE(static_cast<int>(family_id::retnet) == 0);
  STATIC_REQUIRE(static_cast<int>(family_id::gla) == 1);
  STATIC_REQUIRE(static_cast<int>(family_id::gated_deltanet) == 2);
  STATIC_REQUIRE(static_cast<int>(family_id::kda) == 3);
}

TEST_CASE("Families say what their operators and gates look like", "[family]") {
  STATIC_REQUIRE(operator_elements(retnet::form, 64) == 1);
  STATIC_REQUIRE(operator_elements(gla::form, 64) == 64);
  STATIC_REQUIRE(operator_elements(gated_deltanet::form, 64) == 4096);
  STATIC_REQUIRE(operator_elements(kda::form, 64) == 4096);
  STATIC_REQUIRE(operator_elements(operator_form::dense, 1 << 20) == std::int64_t{1} << 40);
  STATIC_REQUIRE(gate_elements<retnet>(64) == 1);
  STATIC_REQUIRE(gate_elements<gla>(64) == 64);
  STATIC_REQUIRE(gate_elements<gated_deltanet>(64) == 1);
  STATIC_REQUIRE(gate_elements<kda>(64) == 64);
}

TEST_CASE("Value heads are served by key heads in equal groups, and a non-multiple is refused", "[family][case-11]") {
  for (std::int32_t const ratio : {1, 2, 3, 4}) {
    state_dims const dims{3, 3 * ratio, 16, 32};
    CHECK(validate(dims) == status::ok);
    for (std::int32_t h = 0; h < dims.value_heads; ++h) CHECK(dims.key_head_of(h) == h / ratio);
  }
  CHECK(validate({3, 4, 16, 16}) == status::invalid_shape);
  CHECK(validate({4, 2, 16, 16}) == status::invalid_shape);
}

TEST_CASE("Dimensions below one are refused by name", "[family]") {
  state_dims const right{1, 1, 1, 1};
  CHECK(validate(right) == status::ok);
  for (std::int32_t const wrong : {0, -1}) {
    for (auto const member :
         {&state_dims::key_heads, &state_dims::value_heads, &state_dims::key_dim, &state_dims::value_dim}) {
      auto dims = right;
      dims.*member = wrong;
      auto const outcome = validate(dims);
      CHECK(outcome == status::invalid_shape);
      CHECK(std::string(outcome.argument()) != "");
    }
  }
}

// One token through the algebra of the library: T and S0 of a step, as the header's equations state them.
TEMPLATE_TEST_CASE("One token maps the state as its family's equation says", "[family]", retnet, gla, gated_deltanet,
                   kda) {
  state_dims const dims{1, 1, 4, 3};
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    layer_inputs const in({.family = TestType::id, .dims = dims, .rows = 1, .gates = gate_kind::fast, .seed = seed});
    CAPTURE(in.spec.text());
    auto const plan = plan_segment_prefill(TestType::id, dims, {}, 0, 1, 1,
                                           {{.first_row = 0, .rows = 1, .initial_slot = 0, .final_slot = 0}});
    REQUIRE(plan);
    tensor<4> states({1, 1, 4, 3});
    for_each_element(states.view(), [](float& x, std::int64_t i) { x = 0.25f * static_cast<float>(i) - 1.0f; });
    auto const before = states.packed();
    lent_scratch memory(plan->workspace_bytes(1));
    REQUIRE(segment_prefill<TestType>(*plan, in.view(), {.states = states.view()}, {.workspace = memory.span()}) ==
            status::ok);

    auto const rows = in.rows.view();
    double projection[3] = {0.0, 0.0, 0.0};
    auto const decay = [&](std::int64_t i) {
      return std::exp(static_cast<double>(rows.gates(0, 0, TestType::gate_per_channel ? i : 0)));
    };
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) {
        projection[j] +=
            static_cast<double>(rows.k(0, 0, i)) * decay(i) * static_cast<double>(before[to_index(3 * i + j)]);
      }
    }
    double const b = TestType::delta_rule ? static_cast<double>(rows.beta(0, 0)) : 1.0;
    std::vector<double> wanted;
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) {
        double const k = static_cast<double>(rows.k(0, 0, i));
        double s = decay(i) * static_cast<double>(before[to_index(3 * i + j)]);
        if (TestType::delta_rule) s -= b * k * projection[j];
        wanted.push_back(s + b * k * static_cast<double>(rows.v(0, 0, j)));
      }
    }
    CHECK(relative_error(states.packed(), wanted) <= 1e-6);
  }
}

}  // namespace
