// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "hypic/core/export.hpp"

namespace hypic::inline v0 {

/// The outcome of a call: a code and, for an error, the argument at fault with what was found and what was expected.
/// Codes are append-only. A status is a plain value: it owns nothing and its argument points to a string literal.
class [[nodiscard]] status {
 public:
  enum code : std::int32_t {
    ok = 0,
    invalid_argument,     ///< a value that has no meaning here
    invalid_shape,        ///< an extent or a stride that does not fit
    out_of_range,         ///< an index or a position outside of its bounds
    unsupported,          ///< well-formed, and refused for now
    workspace_too_small,  ///< the lent scratch is below plan.workspace_bytes()
    capacity_exceeded,    ///< a bounded resource is full
    not_found,            ///< no such entry, ticket or part
    corrupt,              ///< bytes that fail their digest
    backend_failure,      ///< the store or device below reported a failure
    out_of_memory,        ///< an allocation failed while planning
  };

  /// How `found` has to relate to `expected`.
  enum class relation : std::int32_t { none, equal_to, at_least, at_most, multiple_of };

  /// What of a tensor `found` is: nothing of one, or the extent or the stride of one dimension.
  enum class measure : std::int8_t { none, extent, stride };

  constexpr status(code value = ok) noexcept : code_(value) {}  // NOLINT: a code is a status
  constexpr status(code value, char const* argument) noexcept : code_(value), argument_(argument) {}
  constexpr status(code value, char const* argument, std::int64_t found, relation wanted,
                   std::int64_t expected) noexcept
      : code_(value), relation_(wanted), argument_(argument), found_(found), expected_(expected) {}

  /// The same status about one dimension of the argument.
  constexpr status in(measure what, int dimension) const noexcept {
    status about = *this;
    about.measure_ = what;
    about.dimension_ = static_cast<std::int8_t>(dimension);
    return about;
  }

  constexpr code value() const noexcept { return code_; }
  constexpr char const* argument() const noexcept { return argument_; }
  constexpr std::int64_t found() const noexcept { return found_; }
  constexpr std::int64_t expected() const noexcept { return expected_; }
  constexpr relation wanted() const noexcept { return relation_; }
  constexpr measure measured() const noexcept { return measure_; }
  constexpr int dimension() const noexcept { return dimension_; }  ///< read where something was measured

  /// Two outcomes are equal when their codes are.
  friend constexpr bool operator==(status const& left, status const& right) noexcept {
    return left.code_ == right.code_;
  }
  friend constexpr bool operator==(status const& left, code right) noexcept { return left.code_ == right; }

 private:
  code code_ = ok;
  relation relation_ = relation::none;
  measure measure_ = measure::none;
  std::int8_t dimension_ = 0;
  char const* argument_ = "";
  std::int64_t found_ = 0;
  std::int64_t expected_ = 0;
};

/// The outcome in words: the code's name, the argument, what was found and what was expected. Allocates.
HYPIC_API std::string message(status const& outcome);

/// A value, or the status that says why there is none.
/// Reading `value()` of a failed result is a precondition violation.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : value_(std::move(value)) {}                // NOLINT: a value is a result
  result(status failure) : failure_(failure) {}                // NOLINT: so is a failure
  result(status::code failure) : failure_(status{failure}) {}  // NOLINT

  bool has_value() const noexcept { return failure_ == status::ok; }
  explicit operator bool() const noexcept { return has_value(); }
  status error() const noexcept { return failure_; }

  T& value() & noexcept { return *value_; }
  T const& value() const& noexcept { return *value_; }
  T&& value() && noexcept { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  T const* operator->() const noexcept { return &*value_; }
  T& operator*() & noexcept { return *value_; }
  T const& operator*() const& noexcept { return *value_; }

 private:
  std::optional<T> value_;
  status failure_ = status::ok;
};

}  // namespace hypic::inline v0
