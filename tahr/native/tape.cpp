#include "tape.h"

namespace tahr {

void Tape::run(Pool& pool) const {
  if (ops_.empty()) return;
  pool.run([&](const Lane& lane) {
    for (size_t i = 0; i < ops_.size(); i++) {
      ops_[i](lane);
      if (i + 1 < ops_.size()) pool.meet();  // the pool itself meets after the last
    }
  });
}

}  // namespace tahr
