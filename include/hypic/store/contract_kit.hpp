// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hypic/store/cache_store.hpp"

namespace hypic::inline v0 {

/// How the kit comes by the store that it checks. Each clause gets a store of its own, empty.
/// What a host leaves out is not checked, and the report says so: those clauses are skipped, with the member's name.
struct store_under_test {
  /// A store without records, or null, which breaks the clause. A host whose store outlives it gives a front of it here.
  std::unique_ptr<cache_store> (*make)(void* context) = nullptr;
  void* context = nullptr;
  /// Bytes of records that such a store holds, at least 256 KiB. Take few: the kit writes several times as many.
  /// 0: not known; clauses on a full store are skipped.
  std::int64_t capacity_bytes = 0;
  /// Flips a bit of a stored part as faulty memory would, behind the verbs. `of` asks for that one part, which was
  /// published; nobody leases it. False: the part is not there. Null: clauses on damaged bytes are skipped.
  bool (*damage)(void* context, cache_store& store, lookup_request const& of) = nullptr;
  int threads = 8;                     ///< that call at once in the clauses on threads
  std::int64_t most_polls = 10000000;  ///< after which a pending answer counts as none
};

enum class clause_outcome : std::uint8_t { kept, broken, skipped };

/// One clause of the contract of `cache_store`, and what became of it.
struct clause_report {
  char const* verb = "";    ///< begin, poll, publish, release, or any
  char const* clause = "";  ///< what has to hold
  clause_outcome outcome = clause_outcome::skipped;
  std::string found{};  ///< of a broken clause: what was found, and what was expected; of a skipped one: why
};

/// Holds a store against the contract of `cache_store`, clause by clause; for tests, and for the start of a program.
/// Each clause asks about one thing, so that one fault breaks one clause where it can. The clauses, and their order, are
/// the same in each report. Nothing is printed, nothing is thrown.
/// Errors: invalid_argument (no `make`, a capacity that is not 0 and below 256 KiB, threads < 2), out_of_memory.
HYPIC_API result<std::vector<clause_report>> check_store_contract(store_under_test const& subject);

}  // namespace hypic::inline v0
