#pragma once

#include "dispatch.h"
#include "threads.h"

namespace tahr {

// Matrices in slots against matrices in memory, and sources that end, fail, or never answer. Prints what is wrong and
// returns how many things are.
int check_pager(const Isa& isa, Pool& pool);

}  // namespace tahr
