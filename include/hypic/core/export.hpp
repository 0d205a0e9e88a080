// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what the library exports. Everything else is hidden, so that a program that loads two libraries which each
/// contain hypic keeps them apart. On a template it stands at the explicit instantiation.
#define HYPIC_API __attribute__((visibility("default")))
