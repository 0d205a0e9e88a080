// SPDX-License-Identifier: Apache-2.0
#include "engine/records.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>

#include "engine/error.hpp"
#include "engine/status.hpp"
#include "engine/workers.hpp"
#include "hypic/request/schedule.hpp"
#include "hypic/segment/segment_prefill.hpp"

namespace hypic_engine {
namespace {

void copy_rows(hypic::tensor_view<float const, 3> from, hypic::tensor_view<float, 3> to) {
  for (std::int64_t row = 0; row < to.extent[0]; ++row)
    for (std::int64_t head = 0; head < to.extent[1]; ++head)
      std::copy_n(&from(row, head, 0), to.extent[2], &to(row, head, 0));
}

segment_record compute_record(model const& with, std::vector<std::int32_t> const& tokens, hypic::observer* watch) {
  hypic::watched_range const range(watch, "engine.cold_segment");
  auto record = blank_record(with, tokens);
  canonical_mixer mixer(with.layout(), record, watch);
  run_alone(with, record, mixer, watch);
  record.digests = take(part_digests(record.layout, record.block), "the digests of a record");
  return record;
}

}  // namespace

segment_record blank_record(model const& with, std::vector<std::int32_t> tokens) {
  segment_record record;
  record.layout = take(hypic::record_layout::make(with.layout(), static_cast<std::int64_t>(tokens.size())),
                       "the layout of a record");
  record.tokens = std::move(tokens);
  record.block.resize(static_cast<std::size_t>(record.layout.bytes()));
  return record;
}

void run_alone(model const& with, segment_record const& record, token_mixer& mixer, hypic::observer* watch) {
  std::vector<std::int64_t> positions(record.tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  with.forward({record.tokens, positions, {{0, record.layout.tokens()}}}, mixer, 1, watch);
}

void attend_alone(hypic::attention_layer const& layer, hypic::tensor_view<float const, 3> q,
                  hypic::tensor_view<float const, 3> k, hypic::tensor_view<float const, 3> v,
                  hypic::tensor_view<float, 3> o, hypic::observer* watch) {
  auto const rows = q.extent[0];
  auto const plan = hypic::plan_attention(layer, rows, {{0, rows, rows}});
  std::vector<std::int64_t> positions(static_cast<std::size_t>(rows));
  std::iota(positions.begin(), positions.end(), 0);
  hypic::key_value_view const own{k, v};
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes(1)));
  check(seam_attention(plan, q, positions, {&own, 1}, {}, o, {}, {.workspace = workspace, .watch = watch}),
        "the attention of a segment");
}

canonical_mixer::canonical_mixer(hypic::model_layout const& layout, segment_record& record, hypic::observer* watch)
    : layout_(layout), record_(record), watch_(watch) {}

void canonical_mixer::tails(std::int32_t layer, hypic::tensor_view<float const, 2> raw,
                            hypic::tensor_view<float, 3> tails) {
  std::fill_n(tails.data, tails.size(), 0.0f);
  auto const kept = record_.layout.tail(layer, record_.block.data());
  for (std::int64_t i = 0; i < kept.extent[0]; ++i)
    std::copy_n(&raw(rows() - kept.extent[0] + i, 0), kept.extent[2], &kept(i, 0, 0));
}

void canonical_mixer::linear(std::int32_t layer, hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) {
  auto const& shape = std::get<hypic::linear_layer>(layout_.layers[static_cast<std::size_t>(layer)]);
  auto const plan = take(hypic::plan_segment_prefill(shape.family, shape.dims, shape.options, layout_.head_rows, rows(),
                                                     0, {{.rows = rows()}}),
                         "the plan of a segment");
  auto const body = record_.layout.body(layer, record_.block.data());
  auto const head = record_.layout.head(layer, record_.block.data());
  std::uint32_t flags = 0;
  hypic::prefill_outputs const out{.o = o, .bodies = {&body, 1}, .heads = {&head, 1}, .flags = {&flags, 1}};
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes(1)));
  auto const outcome = hypic::with_family(shape.family, [&]<class F>(F) {
    return hypic::segment_prefill<F>(plan, in, out, {.workspace = workspace, .watch = watch_});
  });
  check(outcome, "the prefill of a segment");
  if ((flags & ~static_cast<std::uint32_t>(hypic::expansive_update)) != 0)
    fail("layer ", layer, " made gates or rows that may not be cached, value flags ", flags);
}

void canonical_mixer::attention(std::int32_t layer, hypic::tensor_view<float const, 3> q,
                                hypic::tensor_view<float const, 3> k, hypic::tensor_view<float const, 3> v,
                                hypic::tensor_view<float, 3> o) {
  auto const& shape = std::get<hypic::attention_layer>(layout_.layers[static_cast<std::size_t>(layer)]);
  copy_rows(k, record_.layout.keys(layer, record_.block.data()));
  copy_rows(v, record_.layout.values(layer, record_.block.data()));
  attend_alone(shape, q, k, v, o, watch_);
}

std::vector<segment_record> compute_records(model const& with, std::span<std::vector<std::int32_t> const> segments,
                                            int threads, progress const& tell, hypic::observer* watch) {
  std::vector<double> cost;
  for (auto const& tokens : segments) cost.push_back(static_cast<double>(tokens.size()));
  auto const workers = take(hypic::schedule_longest_first(cost, threads), "the schedule of cold segments");
  std::vector<segment_record> records(segments.size());
  std::mutex telling;
  std::int64_t done = 0;
  for_each_task(threads, static_cast<std::int64_t>(workers.size()), [&](std::int64_t worker) {
    for (auto const job : workers[static_cast<std::size_t>(worker)]) {
      auto const i = static_cast<std::size_t>(job);
      records[i] = compute_record(with, segments[i], watch);
      std::lock_guard const lock(telling);
      if (tell) tell(++done, static_cast<std::int64_t>(segments.size()));
    }
  });
  return records;
}

fetched_records::fetched_records(model const& with, hypic::cache_store& store, std::vector<named_segment> segments,
                                 int threads, store_failures& failures, progress const& tell, hypic::observer* watch)
    : model_(with), store_(store), failures_(failures), segments_(std::move(segments)) {
  for (auto const& segment : segments_) {
    layouts_.push_back(take(hypic::record_layout::make(with.layout(), static_cast<std::int64_t>(segment.tokens.size())),
                            "the layout of a record"));
    reports_.push_back({.key = segment.key, .hit = false, .reason = hypic::miss_reason::store_failure});
  }
  views_.resize(segments_.size());
  look_up();
  compute_missing(threads, tell, watch);
  publish();
}

fetched_records::~fetched_records() {
  if (lease_ != hypic::ticket::none && store_.release(lease_) != hypic::status::ok) ++failures_.release;
}

void fetched_records::look_up() {
  if (segments_.empty()) return;
  std::vector<hypic::lookup_request> requests;
  for (std::size_t i = 0; i < segments_.size(); ++i)
    requests.push_back({segments_[i].key, segments_[i].tokens, &layouts_[i], {}});
  auto const begun = store_.begin(requests);
  if (!begun) {
    ++failures_.begin;
    return;
  }
  lease_ = *begun;

  constexpr auto patience = std::chrono::seconds(10);
  auto const deadline = std::chrono::steady_clock::now() + patience;
  std::vector<hypic::lookup_result> results(requests.size());
  auto const pending = [](auto const& result) { return result.state == hypic::lookup_state::pending; };
  do {
    if (store_.poll(lease_, results) != hypic::status::ok) {
      ++failures_.poll;
      return;
    }
    if (std::none_of(results.begin(), results.end(), pending)) break;
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < deadline);

  for (std::size_t i = 0; i < results.size(); ++i) {
    if (pending(results[i])) continue;
    reports_[i].hit = results[i].state == hypic::lookup_state::hit;
    reports_[i].reason = results[i].reason;
    if (reports_[i].hit) views_[i] = {&layouts_[i], results[i].block.data()};
  }
}

void fetched_records::compute_missing(int threads, progress const& tell, hypic::observer* watch) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (reports_[i].hit) continue;
    missing_.push_back(i);
    tokens.push_back(segments_[i].tokens);
  }
  computed_ = compute_records(model_, tokens, threads, tell, watch);
  for (std::size_t m = 0; m < missing_.size(); ++m) views_[missing_[m]] = computed_[m].view();
}

void fetched_records::publish() {
  if (computed_.empty()) return;
  std::vector<hypic::publish_request> requests;
  for (std::size_t m = 0; m < computed_.size(); ++m) {
    auto const& record = computed_[m];
    requests.push_back({.key = segments_[missing_[m]].key,
                        .tokens = record.tokens,
                        .layout = &record.layout,
                        .block = record.block,
                        .digests = record.digests,
                        .value = record.layout.tokens()});
  }
  std::vector<hypic::status> outcomes(requests.size());
  static_cast<void>(store_.publish(requests, outcomes));
  failures_.publish += std::count_if(outcomes.begin(), outcomes.end(),
                                     [](hypic::status const& outcome) { return outcome != hypic::status::ok; });
}

}  // namespace hypic_engine
