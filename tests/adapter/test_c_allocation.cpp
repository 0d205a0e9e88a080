// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "adapter/c_values.hpp"
#include "hypic.h"
#include "support/failing_allocation.hpp"

using namespace hypic::test;

namespace {

/// A store of C functions that allocates nothing and counts its tickets.
struct counting_store {
  std::uint64_t begun = 0;
  std::uint64_t released = 0;

  hypic_store* make() {
    hypic_store_table table{};
    table.size = sizeof table;
    table.context = this;
    table.begin = [](void* of, hypic_lookup const*, std::int64_t, std::uint64_t* ticket) {
      *ticket = ++static_cast<counting_store*>(of)->begun;
      return hypic_status{};
    };
    table.poll = [](void*, std::uint64_t, hypic_answer*, std::int64_t) { return hypic_status{}; };
    table.publish = [](void*, hypic_publication const*, std::int64_t, hypic_status*) { return hypic_status{}; };
    table.release = [](void* of, std::uint64_t, hypic_reached, void*) {
      ++static_cast<counting_store*>(of)->released;
      return hypic_status{};
    };
    hypic_store* store = nullptr;
    REQUIRE(hypic_table_store_create(&table, &store).code == HYPIC_OK);
    return store;
  }
};

int never(void*) { return 0; }

/// Calls until no allocation fails; after each that failed nothing may have been written.
template <class Call, class Untouched>
void check_out_of_memory(Call call, Untouched untouched, std::int32_t wanted = HYPIC_OUT_OF_MEMORY) {
  int failures = 0;
  for (int allowed = 0;; ++allowed) {
    auto const [code, failed] = [&] {
      failing_allocation const failing{allowed};
      auto const outcome = call();
      return std::pair{outcome.code, failing.failed()};
    }();
    CAPTURE(allowed);
    if (!failed) {
      REQUIRE(code == HYPIC_OK);
      break;
    }
    ++failures;
    REQUIRE(code == wanted);
    REQUIRE(untouched());
  }
  CHECK(failures > 0);
  CHECK_FALSE(untouched());
}

}  // namespace

TEST_CASE("a look-up that finds no memory leaves no ticket in a store of C functions", "[adapter][c_api][allocation]") {
  counting_store counts;
  auto* const store = counts.make();
  std::uint64_t ticket = 0;
  check_out_of_memory([&] { return hypic_store_begin(store, nullptr, 0, &ticket); },
                      [&] { return counts.begun == counts.released; }, HYPIC_BACKEND_FAILURE);
  CHECK(counts.begun == counts.released + 1);

  // A release that fails has not happened either, and the next one does.
  auto const refused = [&] {
    failing_allocation const failing{0};
    return hypic_store_release(store, ticket, never, nullptr).code;
  }();
  CHECK(refused != HYPIC_OK);
  CHECK(counts.begun == counts.released + 1);
  CHECK(hypic_store_release(store, ticket, nullptr, nullptr).code == HYPIC_OK);
  CHECK(counts.begun == counts.released);
  hypic_store_destroy(store);
}

namespace {

bool all_are(values const& of, float wanted) {
  return std::ranges::all_of(of.data, [&](float x) { return x == wanted; });
}

}  // namespace

TEST_CASE("a verb of C that finds no memory has written nothing", "[adapter][c_api][allocation]") {
  constexpr std::int64_t tokens = 20;
  double const frequencies[] = {1.0};
  hypic_layer layers[2]{};
  for (auto& layer : layers) {
    layer.size = sizeof layer;
    layer.key_dim = layer.value_dim = 4;
  }
  layers[0].kind = HYPIC_LINEAR;
  layers[0].family = HYPIC_RETNET;
  layers[0].key_heads = layers[0].value_heads = 2;
  layers[0].q_scale = 1.0f;
  layers[1].kind = HYPIC_ATTENTION;
  layers[1].query_heads = layers[1].kv_heads = 2;
  layers[1].scale = 1.0f;
  for (auto& layer : layers) {
    layer.frequencies = frequencies;
    layer.pairs = 1;
  }
  hypic_model_info info{};
  info.size = sizeof info;
  info.layers = layers;
  info.layer_count = 2;
  info.head_rows = 8;
  hypic_model* model = nullptr;
  hypic_record* record = nullptr;
  REQUIRE(words(hypic_model_create(&info, &model)) == "ok");
  REQUIRE(words(hypic_record_create(model, tokens, &record)) == "ok");
  std::vector<char> const blank(static_cast<std::size_t>(hypic_record_bytes(record)), '\xff');
  auto block = blank;

  std::mt19937 random(1);
  values q({tokens, 2, 4}, random), k({tokens, 2, 4}, random), v({tokens, 2, 4}, random);
  values gates({tokens, 2, 1}, -0.1f), o({tokens, 2, 4}, 7.0f), states({1, 2, 4, 4}, 7.0f), moved({tokens, 2, 4}, 7.0f);
  hypic_rows const rows{sizeof rows, q.in_c(), k.in_c(), v.in_c(), gates.in_c(), hypic_tensor{}};
  lent scratch(1 << 20);
  scratch.exec.threads = 1;
  auto const untouched = [&] {
    return block == blank && all_are(o, 7.0f) && all_are(states, 7.0f) && all_are(moved, 7.0f);
  };
  auto const renew = [&] {
    block = blank;
    for (auto* one : {&o, &states, &moved}) std::ranges::fill(one->data, 7.0f);
  };

  check_out_of_memory(
      [&] { return hypic_segment_linear(model, 0, &rows, o.in_c(), record, block.data(), &scratch.exec); }, untouched);
  renew();
  check_out_of_memory(
      [&] {
        return hypic_segment_attention(model, 1, q.in_c(), k.in_c(), v.in_c(), o.in_c(), record, block.data(),
                                       &scratch.exec);
      },
      untouched);
  renew();

  hypic_sequence const sequence{sizeof sequence, 0, tokens, 0, -1, 0, record, block.data()};
  hypic_prefill* prefill = nullptr;
  check_out_of_memory([&] { return hypic_prefill_create(model, &sequence, 1, tokens, 1, &prefill); },
                      [&] { return prefill == nullptr; });
  std::uint32_t flags = 0;
  check_out_of_memory(
      [&] { return hypic_prefill_linear(prefill, 0, &rows, o.in_c(), states.in_c(), &flags, &scratch.exec); },
      untouched);
  renew();
  check_out_of_memory(
      [&] { return hypic_prefill_attention(prefill, 1, q.in_c(), k.in_c(), v.in_c(), o.in_c(), &scratch.exec); },
      untouched);
  renew();

  hypic_moved_keys const keys{sizeof keys, 5, k.in_c(), v.in_c(), moved.in_c(), o.in_c()};
  check_out_of_memory([&] { return hypic_rebase_keys(model, 1, &keys, 1, &scratch.exec); }, untouched);
  renew();
  values from({2, 4, 4}, random), to({2, 4, 4}, 7.0f);
  hypic_moved_states const turned{sizeof turned, 5, from.in_c(), to.in_c()};
  check_out_of_memory([&] { return hypic_rebase(model, 0, &turned, 1, &scratch.exec); },
                      [&] { return all_are(to, 7.0f); });

  hypic_record* copy = nullptr;
  check_out_of_memory([&] { return hypic_record_copy(record, &copy); }, [&] { return copy == nullptr; });
  hypic_record_destroy(copy);
  hypic_prefill_destroy(prefill);
  hypic_record_destroy(record);
  hypic_model_destroy(model);
}
