// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hypic/store/contract_kit.hpp"
#include "hypic/store/memory_store.hpp"
#include "store/broken_stores.hpp"
#include "store/store_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

/// Damages what stands behind a front, whatever its verbs say.
bool damage_behind(void*, cache_store& store, lookup_request const& of) {
  auto& shown = dynamic_cast<front&>(store);
  auto inside = of;
  inside.key = shown.inner_key(of.key);
  return damage_in_place(shown.inner, inside);
}

/// Few threads and polls: each broken store runs through every clause.
store_under_test behind_a_front(std::unique_ptr<cache_store> (*make)(void*)) {
  return {
      .make = make, .capacity_bytes = contract_capacity, .damage = damage_behind, .threads = 2, .most_polls = 10000};
}

std::vector<clause_report> check(store_under_test const& subject) {
  auto reports = check_store_contract(subject);
  REQUIRE(reports);
  return std::move(reports).value();
}

std::string name(char const* verb, char const* clause) { return std::string(verb) + ": " + clause; }

/// The clauses that are broken, each with a sentence that says what was expected.
std::vector<std::string> broken_clauses(std::vector<clause_report> const& reports) {
  std::vector<std::string> broken;
  for (auto const& report : reports) {
    if (report.outcome != clause_outcome::broken) continue;
    broken.push_back(name(report.verb, report.clause));
    UNSCOPED_INFO(broken.back() + " - " + report.found);
    CHECK(report.found.find("expected") != std::string::npos);
  }
  return broken;
}

bool all_kept(std::vector<clause_report> const& reports) {
  return std::ranges::all_of(reports, [](auto const& report) { return report.outcome == clause_outcome::kept; });
}

std::unique_ptr<cache_store> make_memory_store(void*) { return std::make_unique<memory_store>(contract_capacity); }
std::unique_ptr<cache_store> make_front(void*) { return std::make_unique<front>(); }

}  // namespace

TEST_CASE("The memory store keeps every clause of the contract",
          "[store][contract][case-20][case-21][case-25][case-27][case-30]") {
  auto const reports =
      check({.make = make_memory_store,
             .capacity_bytes = contract_capacity,
             .damage = [](void*, cache_store& store, lookup_request const& of) { return damage_in_place(store, of); }});
  CHECK(broken_clauses(reports).empty());
  CHECK(all_kept(reports));
}

TEST_CASE("A store that answers late, one record after another, keeps every clause too", "[store][contract]") {
  auto const reports = check(behind_a_front([](void*) { return make_slow_store(); }));
  CHECK(broken_clauses(reports).empty());
  CHECK(all_kept(reports));
}

TEST_CASE("Each broken store breaks the clause that names its fault, and no other", "[store][contract]") {
  for (auto const& store : broken_stores()) {
    CAPTURE(store.verb, store.fault);
    CHECK(broken_clauses(check(behind_a_front(store.make))) ==
          std::vector<std::string>{name(store.verb, store.clause)});
  }
}

TEST_CASE("Every clause has a store that breaks it", "[store][contract]") {
  std::set<std::string> clauses, breakable;
  auto const reports = check(behind_a_front(make_front));
  for (auto const& report : reports) clauses.insert(name(report.verb, report.clause));
  for (auto const& store : broken_stores()) breakable.insert(name(store.verb, store.clause));
  CHECK(clauses.size() == reports.size());
  CHECK(clauses == breakable);
}

TEST_CASE("What a host does not bring is skipped, and said so", "[store][contract]") {
  auto const reports = check({.make = make_front});
  std::set<std::string> reasons;
  for (auto const& report : reports) {
    if (report.outcome == clause_outcome::kept) continue;
    CAPTURE(report.clause);
    CHECK(report.outcome == clause_outcome::skipped);
    reasons.insert(report.found);
  }
  CHECK(reasons == std::set<std::string>{"capacity_bytes is not known", "damage is null"});

  auto const known = check({.make = make_front, .capacity_bytes = contract_capacity});
  CHECK(std::ranges::count(known, clause_outcome::skipped, &clause_report::outcome) == 2);
}

TEST_CASE("A damage that finds nothing to damage breaks its clause", "[store][contract]") {
  auto subject = behind_a_front(make_front);
  subject.damage = [](void*, cache_store&, lookup_request const&) { return false; };
  CHECK(broken_clauses(check(subject)) ==
        std::vector<std::string>{"poll: damaged bytes are a miss of their record alone: corrupt"});
}

TEST_CASE("The kit refuses what it cannot work with", "[store][contract]") {
  CHECK(check_store_contract({}).error() == status::invalid_argument);
  CHECK(check_store_contract({.make = make_front, .capacity_bytes = 1000}).error() == status::invalid_argument);
  CHECK(check_store_contract({.make = make_front, .threads = 1}).error() == status::invalid_argument);
  auto const none = check({.make = [](void*) { return std::unique_ptr<cache_store>(); },
                           .capacity_bytes = contract_capacity,
                           .damage = damage_behind});
  CHECK(std::ranges::all_of(none, [](auto const& r) { return r.outcome == clause_outcome::broken; }));
}

TEST_CASE("What a make throws becomes a status", "[store][contract]") {
  auto const reports =
      check_store_contract({.make = [](void*) -> std::unique_ptr<cache_store> { throw std::bad_alloc{}; }});
  CHECK(reports.error() == status::out_of_memory);
}
