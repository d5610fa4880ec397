#pragma once

#include "dispatch.h"
#include "threads.h"

namespace tahr {

// Prints what is wrong and returns how many things are.
int check_rows(const Isa& isa, Pool& pool);

}  // namespace tahr
