#include "module_ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

StateSequences sequences(Address counts, Address positions, Address starts, Address slots, Address state, int64_t state_width) {
  return {At{counts}, At{positions}, At{starts}, At{slots}, At{state}, state_width};
}

void causal_conv(Recorder& self, const StateSequences& seqs, int64_t channels, int kernel, Address x, Address conv, Address bias,
                 Address out) {
  self.tape.add(CausalConvOp{seqs, channels, kernel, At{x}, At{conv}, At{bias}, At{out}}, self.isa.rows->causal_conv);
}

void delta_rule(Recorder& self, const StateSequences& seqs, int n_k_heads, int n_v_heads, int k_dim, int v_dim, bool tiled,
                int64_t matrices, Address mixed, Address z, Address beta, Address alpha, Address decay, Address dt_bias,
                Address gain, float eps, Address out) {
  self.tape.add(DeltaNetOp{seqs, n_k_heads, n_v_heads, k_dim, v_dim, tiled, matrices, At{mixed}, At{z}, At{beta}, At{alpha},
                           At{decay}, At{dt_bias}, At{gain}, eps, At{out}},
                self.isa.rows->delta_rule);
}

void state_space(Recorder& self, const StateSequences& seqs, int n_heads, int head_dim, int n_groups, int state_dim,
                 int64_t matrices, Address mixed, Address dt, Address decay, Address dt_bias, Address skip, Address out) {
  self.tape.add(StateSpaceOp{seqs, n_heads, head_dim, n_groups, state_dim, matrices, At{mixed}, At{dt}, At{decay},
                             At{dt_bias}, At{skip}, At{out}},
                self.isa.rows->state_space);
}

void gated_norm(Recorder& self, Address n_rows, int64_t width, int n_groups, Address z, Address gain, float eps, Address x) {
  self.tape.add(GatedNormOp{At{n_rows}, width, n_groups, At{z}, At{gain}, eps, At{x}}, self.isa.rows->gated_norm);
}

}  // namespace

void bind_recurrence(nb::module_& module, nb::class_<Recorder>& tape) {
  nb::class_<StateSequences>(module, "StateSequences")
      .def("__init__", [](StateSequences* self, Address counts, Address positions, Address starts, Address slots, Address state,
                          int64_t state_width) {
             new (self) StateSequences(sequences(counts, positions, starts, slots, state, state_width));
           },
           nb::kw_only(), "counts"_a, "positions"_a, "starts"_a, "slots"_a, "state"_a, "state_width"_a);
  tape.def("causal_conv", causal_conv, nb::kw_only(), "seqs"_a, "channels"_a, "kernel"_a, "x"_a, "conv"_a, "bias"_a, "out"_a)
      .def("delta_rule", delta_rule, nb::kw_only(), "seqs"_a, "n_k_heads"_a, "n_v_heads"_a, "k_dim"_a, "v_dim"_a, "tiled"_a,
           "matrices"_a, "mixed"_a, "z"_a, "beta"_a, "alpha"_a, "decay"_a, "dt_bias"_a, "gain"_a, "eps"_a, "out"_a)
      .def("state_space", state_space, nb::kw_only(), "seqs"_a, "n_heads"_a, "head_dim"_a, "n_groups"_a, "state_dim"_a,
           "matrices"_a, "mixed"_a, "dt"_a, "decay"_a, "dt_bias"_a, "skip"_a, "out"_a)
      .def("gated_norm", gated_norm, nb::kw_only(), "n_rows"_a, "width"_a, "n_groups"_a, "z"_a, "gain"_a, "eps"_a, "x"_a);
}

}  // namespace tahr
