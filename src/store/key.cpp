// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/key.hpp"

#include <cmath>

#include "hypic/store/record.hpp"
#include "store/encoder.hpp"
#include "store/guarded.hpp"

namespace hypic::inline v0 {

result<record_key> make_record_key(segment_identity const& identity) {
  if (identity.model.empty()) return status{status::invalid_argument, "model"};
  if (!(std::isfinite(identity.form_bound) && identity.form_bound >= 0.0)) {
    return status{status::invalid_argument, "form_bound"};
  }

  return guarded([&]() -> result<record_key> {
    encoder fields;
    fields.text("hypic record");
    fields.number(record_layout_revision);
    fields.numbers(identity.tokens);
    fields.bytes(identity.content);
    fields.text(identity.model);
    fields.text(identity.tenant);
    fields.text(identity.adapter);
    fields.number(identity.epoch);
    fields.number(identity.form_bound + 0.0);  // of both zeros one
    fields.number(static_cast<int>(identity.kv));

    auto const name = sha256({fields.written()});
    if (!name) return name.error();
    return record_key{*name};
  });
}

}  // namespace hypic::inline v0
