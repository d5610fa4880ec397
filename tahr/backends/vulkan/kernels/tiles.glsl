// A workgroup makes a tile of BM rows and BN columns of a product, 32 columns of both operands at a time.
layout(constant_id = 1) const uint THREADS = 128;  // of a workgroup
layout(constant_id = 2) const bool GATED = false;
layout(constant_id = 3) const bool BIASED = false;
layout(push_constant) uniform Push {
  uint64_t codes;
  uint64_t scales;
  uint64_t up_codes;
  uint64_t up_scales;
  Floats bias;
  Floats up_bias;
  uint64_t x;      // rows, as a kernel wants them
  Floats factors;  // of rows of f16 numbers
  Floats y;
  Ints n_rows;
  uint n_out;
  uint n_cols;
  uint act;
};
const uint B_LOADS = (4 * BN + THREADS - 1) / THREADS;

uint n, row0, column0;
Raw raw_b[B_LOADS];

// Workgroups go through 8 tiles of rows before the next columns: what they read stays in the cache.
void choose_tile() {
  const uint tiles_m = gl_NumWorkGroups.y, tiles_n = gl_NumWorkGroups.x;
  const uint id = gl_WorkGroupID.y * tiles_n + gl_WorkGroupID.x;
  const uint stripe = id / (8 * tiles_n), in_stripe = id % (8 * tiles_n);
  const uint height = min(8, tiles_m - 8 * stripe);
  n = uint(n_rows.v[0]);
  row0 = (8 * stripe + in_stripe % height) * BM;
  column0 = in_stripe / height * (GATED ? BN / 2 : BN);
}

// The row of a matrix that is row r of the tile. Gates and what they gate lie side by side, SHARE / 2 rows of each in turn.
void fetch_b(uint block) {
  [[unroll]] for (uint i = 0; i < B_LOADS; ++i) {
    const uint at = i * THREADS + gl_LocalInvocationID.x, r = min(at / 4, BN - 1);
    const bool is_up = GATED && r % SHARE >= SHARE / 2;
    const uint own = GATED ? r / SHARE * (SHARE / 2) + r % (SHARE / 2) : r;
    const uint64_t row = min(column0 + own, n_out - 1);
    const uint64_t code_row = (is_up ? up_codes : codes) + row * codes_row_bytes(n_cols);
    const uint64_t scale_row = (is_up ? up_scales : scales) + row * scales_row_bytes(n_cols);
    raw_b[i] = fetch(code_row, scale_row, block, at % 4, n_cols);
  }
}

// A number of the result from the sums that belong to it.
float finished(float sum, float up, uint column) {
  if (BIASED) sum += bias.v[column];
  if (!GATED) return sum;
  if (BIASED) up += up_bias.v[column];
  return activated_with(act, sum, up);
}
