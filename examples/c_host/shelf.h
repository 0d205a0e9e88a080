/* SPDX-License-Identifier: Apache-2.0 */
/* A store of the host's own, in C: records stand on a shelf of so many bytes, and the least recently used one goes
   when there is no room. A lease has copies of its own, so that nothing on the shelf has to wait for it. */
#ifndef SHELF_H
#define SHELF_H

#include <hypic.h>

/* A store that hypic calls, or null where there is no memory. hypic_store_destroy ends it. */
hypic_store* shelf_create(int64_t capacity_bytes);

/* Flips a bit of a stored part behind the verbs, as faulty memory would. 0: the part is not there. */
int shelf_damage(hypic_store* store, hypic_lookup const* of);

#endif
