// SPDX-License-Identifier: Apache-2.0
// A store of the engine's own behind hypic's interface: it is held against the contract at the start of the program, then
// serves a record that was published.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "hypic/store/contract_kit.hpp"
#include "paged_store.hpp"

namespace {

constexpr std::int64_t pages = 256, page_bytes = 4096;

void require(hypic::status outcome) {
  if (outcome == hypic::status::ok) return;
  std::fprintf(stderr, "%s\n", hypic::message(outcome).c_str());
  std::exit(1);
}

// [begin contract]
/// Whether the store keeps the contract; prints the clauses that it breaks, and those that were not checked.
bool keeps_contract() {
  auto const reports =
      hypic::check_store_contract({.make = [](void*) -> std::unique_ptr<hypic::cache_store> {
                                     return std::make_unique<paged_store>(pages, page_bytes);
                                   },
                                   .capacity_bytes = pages * page_bytes,
                                   .damage =
                                       [](void*, hypic::cache_store& store, hypic::lookup_request const& of) {
                                         return static_cast<paged_store&>(store).damage(of.key, of.parts[0]);
                                       }});
  require(reports.error());
  std::size_t kept = 0;
  for (auto const& report : *reports) {
    kept += report.outcome == hypic::clause_outcome::kept;
    if (report.outcome == hypic::clause_outcome::kept) continue;
    auto const* const what = report.outcome == hypic::clause_outcome::broken ? "broken" : "skipped";
    std::printf("%s: %s: %s (%s)\n", what, report.verb, report.clause, report.found.c_str());
  }
  std::printf("%zu of %zu clauses kept\n", kept, reports->size());
  return kept == reports->size();
}
// [end contract]

hypic::model_layout model() {
  hypic::linear_layer linear;
  linear.family = hypic::family_id::gla;
  linear.dims = {.key_heads = 4, .value_heads = 4, .key_dim = 32, .value_dim = 32};
  hypic::attention_layer attention{.query_heads = 4, .kv_heads = 2, .key_dim = 32, .value_dim = 32};
  return {.layers = {linear, attention}, .head_rows = 8};
}

}  // namespace

int main() {
  if (!keeps_contract()) return 1;

  std::vector<std::int32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 1);
  auto const layout = hypic::record_layout::make(model(), 200);
  require(layout.error());
  auto const fingerprint = hypic::model_fingerprint(model(), "the engine's weights");
  require(fingerprint.error());
  auto const key = hypic::make_record_key({.tokens = tokens, .model = *fingerprint});
  require(key.error());
  std::vector<std::byte> block(static_cast<std::size_t>(layout->bytes()), std::byte{42});
  auto const digests = hypic::part_digests(*layout, block);
  require(digests.error());

  paged_store store(pages, page_bytes);
  hypic::publish_request const published{
      .key = *key, .tokens = tokens, .layout = &*layout, .block = block, .digests = *digests, .value = 200};
  hypic::status outcome;
  require(store.publish({&published, 1}, {&outcome, 1}));
  std::printf("a record of %lld bytes; %lld of %lld pages are free\n", static_cast<long long>(layout->bytes()),
              static_cast<long long>(store.free_pages()), static_cast<long long>(pages));

  // [begin serve]
  hypic::lookup_request const wanted{.key = *key, .tokens = tokens, .layout = &*layout};
  auto const ticket = store.begin({&wanted, 1});
  require(ticket.error());
  hypic::lookup_result found;
  do require(store.poll(*ticket, {&found, 1}));
  while (found.state == hypic::lookup_state::pending);
  if (found.state == hypic::lookup_state::miss) {
    std::printf("a miss: %s\n", hypic::to_string(found.reason));
    return 1;
  }
  // The kernels of the request read found.block here; the lease ends when they are done.
  std::printf("a hit of %zu bytes\n", found.block.size());
  require(store.release(*ticket));
  // [end serve]
}
