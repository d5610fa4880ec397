// The end of a process whose parent has ended.
#pragma once

namespace tahr {

// Ends this process, at once and whatever it does, when the process at the other end of a pipe has ended. Where the system
// can, its own parent's end kills it even while it is stopped: the thread that made this process must last as long as it.
// False if that one has ended already.
bool end_with(int parent, int pipe);

}  // namespace tahr
