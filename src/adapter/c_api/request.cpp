// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "adapter/c_api/c_api.hpp"

using namespace hypic::c_api;
using hypic::status;

extern "C" {

hypic_status hypic_batch_create(hypic_model const* model, hypic_request const* requests, int64_t count,
                                hypic_batch** batch) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"batch", batch}}); s != status::ok) return s;
    std::vector<hypic_request> given;
    if (auto const s = read_all(requests, count, "requests", given); s != status::ok) return s;
    std::vector<hypic::batch_request> planned;
    for (auto const& one : given) {
      std::vector<hypic_span> spans;
      if (auto const s = read_all(one.spans, one.span_count, "requests.spans", spans); s != status::ok) return s;
      std::vector<hypic::prompt_span> prompt;
      for (auto const& span : spans) {
        if (span.kind != HYPIC_CACHED && span.kind != HYPIC_FRESH) {
          return {status::invalid_argument, "requests.spans.kind", span.kind, status::relation::at_most, HYPIC_FRESH};
        }
        auto const tokens = span_of(span.tokens, span.token_count);
        prompt.push_back({span.kind == HYPIC_CACHED ? hypic::span_kind::cached : hypic::span_kind::fresh,
                          {tokens.begin(), tokens.end()},
                          to_cpp(span.key)});
      }
      auto plan = hypic::plan_request(model->layout, prompt,
                                      {.seam_rows = one.seam_rows,
                                       .generated_tokens = one.generated_tokens,
                                       .preceding_tokens = one.preceding_tokens});
      if (!plan) return plan.error();
      planned.push_back({std::move(plan).value(), one.initial_slot, one.final_slot});
    }
    auto made = hypic::plan_batch(std::move(planned));
    if (!made) return made.error();
    *batch = new hypic_batch{std::move(made).value()};
    return status::ok;
  });
}
void hypic_batch_destroy(hypic_batch* batch) { delete batch; }
int64_t hypic_batch_row_count(hypic_batch const* batch) { return batch->plan.rows(); }
void hypic_batch_rows(hypic_batch const* batch, int32_t* tokens, int64_t* positions) {
  for (auto const& request : batch->plan.requests) {
    tokens = std::ranges::copy(request.plan.row_tokens, tokens).out;
    positions = std::ranges::copy(request.plan.row_positions, positions).out;
  }
}
int64_t hypic_batch_record_count(hypic_batch const* batch) { return static_cast<int64_t>(batch->plan.records.size()); }
hypic_key hypic_batch_record(hypic_batch const* batch, int64_t index) {
  return to_c(batch->plan.records[static_cast<std::size_t>(index)].bytes);
}
int64_t hypic_batch_run_count(hypic_batch const* batch) { return static_cast<int64_t>(batch->plan.runs.size()); }
void hypic_batch_run(hypic_batch const* batch, int64_t index, int64_t* first_row, int64_t* rows) {
  auto const& run = batch->plan.runs[static_cast<std::size_t>(index)];
  *first_row = run.first_row;
  *rows = run.rows;
}

hypic_status hypic_assembler_create(hypic_model const* model, hypic_batch const* batch,
                                    hypic_record const* const* records, void const* const* blocks, int64_t state_slots,
                                    hypic_assembler** assembler) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"batch", batch}, {"assembler", assembler}}); s != status::ok)
      return s;
    std::vector<hypic::record_view> views;
    for (std::size_t i = 0; i < batch->plan.records.size(); ++i) {
      if (auto const s = expect_pointers({{"records", records}, {"blocks", blocks}}); s != status::ok) return s;
      if (auto const s = expect_pointers({{"records", records[i]}, {"blocks", blocks[i]}}); s != status::ok) return s;
      views.push_back({&records[i]->layout, static_cast<std::byte const*>(blocks[i])});
    }
    auto made = hypic::assembler::make(model->layout, batch->plan, views, state_slots);
    if (!made) return made.error();
    *assembler = new hypic_assembler{std::move(made).value(), *model};
    return status::ok;
  });
}
void hypic_assembler_destroy(hypic_assembler* assembler) { delete assembler; }
int64_t hypic_assembler_workspace_bytes(hypic_assembler const* assembler, int32_t threads) {
  return assembler->inner.workspace_bytes(threads);
}

hypic_status hypic_assembler_tails(hypic_assembler const* assembler, int32_t layer, hypic_tensor raw, hypic_tensor pool,
                                   hypic_tensor tails, hypic_exec const* exec) {
  return guarded([&]() -> status {
    hypic::tensor_view<float, 2> rows;
    hypic::tensor_view<float, 3> slots, out;
    hypic::host_exec ex;
    if (auto const s =
            hypic::first_failure(expect_pointers({{"assembler", assembler}}), view_of(raw, "raw", rows),
                                 view_of(pool, "pool", slots), view_of(tails, "tails", out), exec_of(exec, ex));
        s != status::ok)
      return s;
    return assembler->inner.tails(layer, rows, slots, out, ex);
  });
}

hypic_status hypic_assembler_linear(hypic_assembler const* assembler, int32_t layer, hypic_rows const* rows,
                                    hypic_tensor o, hypic_tensor states, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"assembler", assembler}}); s != status::ok) return s;
    hypic::query_rows_view in;
    hypic::repair_outputs out;
    hypic::host_exec ex;
    auto const* shape = find_layer<hypic::linear_layer>(assembler->model, layer);
    if (shape == nullptr) return {status::invalid_argument, "layer: it is not a linear layer"};
    if (auto const s = hypic::first_failure(rows_of(rows, in, shape->options.gates), view_of(o, "o", out.o),
                                            view_of(states, "states", out.states), exec_of(exec, ex));
        s != status::ok)
      return s;
    return assembler->inner.linear(layer, in, out, ex);
  });
}

hypic_status hypic_assembler_attention(hypic_assembler const* assembler, int32_t layer, hypic_tensor q, hypic_tensor k,
                                       hypic_tensor v, hypic_tensor const* keys, hypic_tensor const* values,
                                       hypic_tensor o, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"assembler", assembler}, {"keys", keys}, {"values", values}}); s != status::ok)
      return s;
    hypic::tensor_view<float, 3> queries, new_keys, new_values, out;
    hypic::host_exec ex;
    if (auto const s = hypic::first_failure(view_of(q, "q", queries), view_of(k, "k", new_keys),
                                            view_of(v, "v", new_values), view_of(o, "o", out), exec_of(exec, ex));
        s != status::ok)
      return s;
    std::vector<hypic::request_cache> caches(assembler->inner.plan().requests.size());
    for (std::size_t i = 0; i < caches.size(); ++i)
      if (auto const s = hypic::first_failure(view_of(keys[i], "keys", caches[i].keys),
                                              view_of(values[i], "values", caches[i].values));
          s != status::ok)
        return s;
    return assembler->inner.attention(layer, queries, new_keys, new_values, caches, out, ex);
  });
}

}  // extern "C"
