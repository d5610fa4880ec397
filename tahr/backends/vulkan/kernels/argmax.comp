// The first of the largest numbers of each row: its place; -1 where one is NaN or +inf, -2 where all are -inf.
#include "common.glsl"
layout(push_constant) uniform Push {
  Ints n_rows;
  Floats x;
  Ints out_;
  uint width;    // of a row
  uint n_vocab;  // of them, tokens
};
const int NOT_NUMBERS = -1, NOTHING_LEFT = -2;
shared float best[1024];
shared uint best_at[1024];
shared bool is_odd;

void main() {
  const uint row = gl_WorkGroupID.x, i = gl_LocalInvocationID.x;
  if (row >= uint(n_rows.v[0])) return;
  if (i == 0) is_odd = false;
  barrier();
  Floats xs = Floats(uint64_t(x) + 4ul * row * width);
  float most = -INFINITY;
  uint at = n_vocab;
  for (uint k = i; k < n_vocab; k += gl_WorkGroupSize.x) {
    const float own = xs.v[k];
    const uint bits = floatBitsToUint(own);
    if (bits == 0x7F800000u || (bits & 0x7FFFFFFFu) > 0x7F800000u) is_odd = true;
    if (own > most) {
      most = own;
      at = k;
    }
  }
  best[i] = most;
  best_at[i] = at;
  for (uint half_of = gl_WorkGroupSize.x / 2; half_of > 0; half_of /= 2) {
    barrier();
    if (i >= half_of) continue;
    const bool better = best[i + half_of] > best[i] || (best[i + half_of] == best[i] && best_at[i + half_of] < best_at[i]);
    if (better) {
      best[i] = best[i + half_of];
      best_at[i] = best_at[i + half_of];
    }
  }
  if (i == 0) out_.v[row] = is_odd ? NOT_NUMBERS : best_at[0] == n_vocab ? NOTHING_LEFT : int(best_at[0]);
}
