// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: two ranks hold the heads of a model half each. Each publishes the parts of a segment's record that
// its heads make; whoever asks for all of them finds the record whole, and until both have written, finds it incomplete.
// The ranks here are threads that share a store, as ranks of a machine share one, or a remote one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "hypic/store/memory_store.hpp"

namespace {

constexpr std::int32_t ranks = 2;

void require(hypic::status outcome) {
  if (outcome == hypic::status::ok) return;
  std::fprintf(stderr, "%s\n", hypic::message(outcome).c_str());
  std::exit(1);
}

/// A Gated DeltaNet layer whose convolution runs over q, k and v, and an attention layer. The tail is cut into groups of
/// a head's channels, so that each rank has whole groups.
hypic::model_layout model() {
  hypic::linear_layer linear;
  linear.family = hypic::family_id::gated_deltanet;
  linear.dims = {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 16};
  linear.tail_rows = 3;
  linear.tail_channels = (2 + 2 + 4) * 16;
  linear.tail_groups = 2 + 2 + 4;
  hypic::attention_layer attention{.query_heads = 8, .kv_heads = 2, .key_dim = 16, .value_dim = 16};
  return {.layers = {linear, attention}, .head_rows = 8};
}

// [begin parts]
/// The rank that makes a part: heads, and the tail's groups of q, k and v heads, are shared out in halves.
std::int32_t owner(hypic::part_id const& part) {
  switch (part.kind) {
    case hypic::part_kind::head_keys:
    case hypic::part_kind::keys_values: return part.head;
    case hypic::part_kind::linear_state: return part.head / 2;
    case hypic::part_kind::tail: return part.head < 4 ? part.head % 2 : (part.head - 4) / 2;
  }
  return 0;
}

std::vector<hypic::part_id> parts_of(hypic::record_layout const& layout, std::int32_t rank) {
  std::vector<hypic::part_id> mine;
  for (auto const& part : layout.parts())
    if (owner(part.id) == rank) mine.push_back(part.id);
  return mine;
}
// [end parts]

/// Stands for what the ranks' kernels would write into their parts.
std::vector<std::byte> computed(hypic::record_layout const& layout) {
  std::vector<std::byte> block(static_cast<std::size_t>(layout.bytes()));
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i * 31 % 251);
  return block;
}

// [begin publish]
void publish(hypic::cache_store& store, hypic::record_key key, std::span<std::int32_t const> tokens,
             hypic::record_layout const& layout, std::int32_t rank) {
  auto const block = computed(layout);  // only the rank's own parts of it are read
  auto const digests = hypic::part_digests(layout, block);
  require(digests.error());
  auto const mine = parts_of(layout, rank);
  hypic::publish_request const request{
      .key = key, .tokens = tokens, .layout = &layout, .block = block, .digests = *digests, .parts = mine, .value = 1};
  hypic::status outcome;
  require(store.publish({&request, 1}, {&outcome, 1}));
}
// [end publish]

hypic::lookup_result look_up(hypic::cache_store& store, hypic::lookup_request const& wanted, hypic::ticket& lease) {
  auto const begun = store.begin({&wanted, 1});
  require(begun.error());
  lease = *begun;
  hypic::lookup_result found;
  while (found.state == hypic::lookup_state::pending) require(store.poll(lease, {&found, 1}));
  return found;
}

}  // namespace

int main() {
  std::vector<std::int32_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 7);
  auto const layout = hypic::record_layout::make(model(), static_cast<std::int64_t>(tokens.size()));
  require(layout.error());
  auto const fingerprint = hypic::model_fingerprint(model(), "two ranks' weights");
  require(fingerprint.error());
  auto const key = hypic::make_record_key({.tokens = tokens, .model = *fingerprint});
  require(key.error());
  hypic::memory_store store(std::int64_t{1} << 20);

  hypic::lookup_request const all{.key = *key, .tokens = tokens, .layout = &*layout};
  auto lease = hypic::ticket::none;
  publish(store, *key, tokens, *layout, 0);
  auto const half = look_up(store, all, lease);
  require(store.release(lease));
  std::printf("after rank 0: %s\n", hypic::to_string(half.reason));

  // A rank that asks for its own parts has them, whatever the other one does meanwhile.
  auto const mine = parts_of(*layout, 0);
  auto const own = look_up(store, {.key = *key, .tokens = tokens, .layout = &*layout, .parts = mine}, lease);
  require(store.release(lease));

  std::thread([&] { publish(store, *key, tokens, *layout, 1); }).join();
  auto const whole = look_up(store, all, lease);
  auto const wanted = computed(*layout);
  bool same = whole.state == hypic::lookup_state::hit;
  for (auto const& part : layout->parts())
    same = same && std::memcmp(whole.block.data() + part.offset, wanted.data() + part.offset,
                               static_cast<std::size_t>(part.bytes)) == 0;
  require(store.release(lease));
  std::printf("after both: %s, %zu parts, %s\n", same ? "hit" : "no hit", layout->parts().size(),
              same ? "every byte as written" : "bytes differ");
  return half.reason == hypic::miss_reason::incomplete && own.state == hypic::lookup_state::hit && same ? 0 : 1;
}
