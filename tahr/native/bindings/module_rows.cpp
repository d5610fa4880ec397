#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "module_ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

template <class E>
struct Named {
  const char* name;
  E value;
};

constexpr Named<Activation> ACTIVATIONS[] = {
    {"silu", Activation::silu}, {"gelu_tanh", Activation::gelu_tanh}, {"gelu", Activation::gelu},
    {"sigmoid", Activation::sigmoid}, {"relu2", Activation::relu2},
    {"clamped_swiglu", Activation::clamped_swiglu}, {"quick_gelu", Activation::quick_gelu}};
constexpr Named<RopeStyle> ROPE_STYLES[] = {{"halves", RopeStyle::halves}, {"pairs", RopeStyle::pairs}};
constexpr Named<KvType> KV_TYPES[] = {{"f32", KvType::f32}, {"f16", KvType::f16}, {"bf16", KvType::bf16}, {"q8_0", KvType::q8_0}};

template <class E, size_t N>
E find(const Named<E> (&table)[N], const std::string& name) {
  for (const auto& row : table)
    if (name == row.name) return row.value;
  throw nb::value_error(("'" + name + "' is not a known choice.").c_str());
}

KvLayer make_layer(Address keys, Address values, const std::string& key_type, const std::string& value_type, int n_heads,
                   int head_dim, int page_size, int latent) {
  return {At{keys}, At{values}, find(KV_TYPES, key_type), find(KV_TYPES, value_type), n_heads, head_dim, page_size, latent};
}

void norm(Recorder& self, Address n_rows, int64_t width, Address x, Address y, Address gain, Address sum, Address out,
          float eps, float scale, Address quantised_out) {
  self.tape.add(NormOp{At{n_rows}, width, At{x}, At{y}, At{gain}, At{sum}, At{out}, eps, scale, At{quantised_out}},
                self.isa.rows->norm);
}

void head_norm(Recorder& self, Address n_rows, int64_t n_heads, int64_t dim, Address x, Address gain, Address out, float eps) {
  self.tape.add(HeadNormOp{At{n_rows}, n_heads, dim, At{x}, At{gain}, At{out}, eps}, self.isa.rows->head_norm);
}

void columns(Recorder& self, Address n_rows, int64_t width, int64_t x_width, int64_t begin, Address x, Address out) {
  self.tape.add(ColumnsOp{At{n_rows}, width, x_width, begin, At{x}, At{out}}, self.isa.rows->columns);
}

void join_heads(Recorder& self, Address n_rows, int64_t n_heads, int64_t x_dim, int64_t y_dim, Address x, Address y, Address out) {
  self.tape.add(JoinHeadsOp{At{n_rows}, n_heads, x_dim, y_dim, At{x}, At{y}, At{out}}, self.isa.rows->join_heads);
}

void layer_norm(Recorder& self, Address n_rows, int64_t n_heads, int64_t width, Address x, Address y, Address gain,
                Address bias, Address sum, Address out, float eps, float scale, Address quantised_out) {
  self.tape.add(LayerNormOp{At{n_rows}, n_heads, width, At{x}, At{y}, At{gain}, At{bias}, At{sum}, At{out}, eps, scale,
                            At{quantised_out}},
                self.isa.rows->layer_norm);
}

void add(Recorder& self, Address n_rows, int64_t width, Address x, Address y, Address out, float scale) {
  self.tape.add(AddOp{At{n_rows}, width, At{x}, At{y}, At{out}, scale}, self.isa.rows->add);
}

void activate(Recorder& self, Address n_rows, int64_t width, Address gate, Address up, Address out, const std::string& act,
              Address quantised_out) {
  self.tape.add(ActivateOp{At{n_rows}, width, At{gate}, At{up}, At{out}, find(ACTIVATIONS, act), At{quantised_out}},
                self.isa.rows->activate);
}

void softcap(Recorder& self, Address n_rows, int64_t width, Address x, Address out, float cap) {
  self.tape.add(SoftcapOp{At{n_rows}, width, At{x}, At{out}, cap}, self.isa.rows->softcap);
}

void clip(Recorder& self, Address n_rows, int64_t width, Address x, Address out, float limit) {
  self.tape.add(ClipOp{At{n_rows}, width, At{x}, At{out}, limit}, self.isa.rows->clip);
}

void temper(Recorder& self, Address n_rows, int64_t width, Address positions, Address x, Address out, float beta, int period,
            int offset) {
  self.tape.add(TemperOp{At{n_rows}, width, At{positions}, At{x}, At{out}, beta, period, offset}, self.isa.rows->temper);
}

void gather_rows(Recorder& self, Address n_rows, int64_t width, Address rows, Address x, Address out) {
  self.tape.add(GatherRowsOp{At{n_rows}, width, At{rows}, At{x}, At{out}}, self.isa.rows->gather_rows);
}

void with_rows(Recorder& self, Address n_rows, int64_t width, int64_t buffer_width, int64_t begin, Address row_of, Address buffer,
               Address x, Address out, bool add) {
  self.tape.add(WithRowsOp{At{n_rows}, width, buffer_width, begin, At{row_of}, At{buffer}, At{x}, At{out}, add},
                self.isa.rows->with_rows);
}

void store_rows(Recorder& self, Address n_rows, int64_t width, int64_t buffer_width, int64_t begin, Address row_target, Address x,
                Address buffer) {
  self.tape.add(StoreRowsOp{At{n_rows}, width, buffer_width, begin, At{row_target}, At{x}, At{buffer}}, self.isa.rows->store_rows);
}

void choose(Recorder& self, Address n_rows, Address logits, int64_t stride, int32_t n_vocab, Address params,
            const std::vector<Address>& edits, Address tokens, Address ids) {
  const LogitEdits changes = edits.empty() ? LogitEdits{}
                                           : LogitEdits{At{edits.at(0)}, At{edits.at(1)}, At{edits.at(2)},
                                                        At{edits.at(3)}, At{edits.at(4)}, At{edits.at(5)}};
  self.tape.add(ChooseOp{At{n_rows}, {At{logits}, stride, 0, n_vocab}, At{params}, changes, At{tokens}, At{ids}},
                self.isa.sampling->choose);
}

void cos_sin(Recorder& self, Address n_rows, int64_t n_freqs, Address positions, Address inv_freq, Address axis_begins, Address out,
             float scale) {
  self.tape.add(CosSinOp{At{n_rows}, n_freqs, At{positions}, At{inv_freq}, At{axis_begins}, At{out}, scale}, self.isa.rows->cos_sin);
}

void rope_and_cache(Recorder& self, Address n_rows, int n_q_heads, Address q, Address k, Address v, Address cos_sin, int n_freqs,
           const std::string& style, Address q_gain, Address k_gain, float eps, Address key_mean, Address slots,
           const KvLayer& kv, Address out) {
  self.tape.add(RopeCacheOp{At{n_rows}, n_q_heads, At{q}, At{k}, At{v}, At{cos_sin}, n_freqs, find(ROPE_STYLES, style),
                        At{q_gain}, At{k_gain}, eps, At{key_mean}, At{slots}, kv, At{out}},
                self.isa.rows->rope_and_cache);
}

void attention(Recorder& self, Address counts, Address positions, Address starts, Address lengths, Address page_table,
               int n_pages_per_seq, int n_q_heads, int group, Address q, Address out, const KvLayer& kv, float scale, float softcap,
               int window, bool chunked, Address partials, int n_spans, Address sinks, Address slopes, bool causal, Address quantised_out,
               bool plain) {
  const AttentionOp op{At{counts}, At{positions}, At{starts}, At{lengths}, At{page_table}, n_pages_per_seq, n_q_heads,
                       group,      At{q},         At{out},    kv,          scale,          softcap,         window,
                       chunked,    At{partials},  n_spans,    At{sinks},   At{slopes},     causal,          At{quantised_out}, plain};
  self.tape.add(op, self.isa.rows->attention);
  self.tape.add(op, self.isa.rows->merge_spans);
}

void route(Recorder& self, Address n_rows, Address scores, int n_experts, int n_active, bool renormalise, bool sigmoid,
           Address bias, int n_groups, int n_best_groups, int group_top, float scale, float jitter, Address factors, Address experts,
           Address shares) {
  self.tape.add(RouteOp{At{n_rows}, At{scores}, n_experts, n_active, renormalise, sigmoid, At{bias}, n_groups, n_best_groups,
                        group_top, scale, jitter, At{factors}, At{experts}, At{shares}},
                self.isa.rows->route);
}

void mix(Recorder& self, Address n_rows, int64_t width, int n_active, Address shares, Address x, Address out) {
  self.tape.add(MixOp{At{n_rows}, width, n_active, At{shares}, At{x}, At{out}}, self.isa.rows->mix);
}

using LoraTargetAt = std::tuple<Address, Address, int64_t>;  // slots, out, its width

void lora(Recorder& self, Address n_tiles, Address tiles, Address rows, Address scales, int64_t most, int64_t n_cols, Address x,
          Address low, int64_t most_rank, const std::vector<LoraTargetAt>& targets) {
  if (targets.empty() || targets.size() > MAX_LORA_TARGETS) throw nb::value_error("Too many linears for one op.");
  LoraOp op{At{n_tiles}, At{tiles}, At{rows}, At{scales}, most, n_cols, At{x}, At{low}, most_rank, int32_t(targets.size()), {}};
  for (int i = 0; i < op.n_targets; i++) {
    const auto& [slots, out, width] = targets[size_t(i)];
    op.targets[i] = {At{slots}, At{out}, width};
  }
  self.tape.add(op, self.isa.rows->lora_shrink, self.isa.rows->lora_shrink_reads);
  self.tape.add(op, self.isa.rows->lora_expand, self.isa.rows->lora_expand_reads);
}

}  // namespace

void bind_row_ops(nb::module_& module, nb::class_<Recorder>& tape) {
  nb::class_<KvLayer>(module, "KvLayer")
      .def("__init__", [](KvLayer* self, Address keys, Address values, const std::string& key_type, const std::string& value_type,
                          int n_heads, int head_dim, int page_size, int latent) {
             new (self) KvLayer(make_layer(keys, values, key_type, value_type, n_heads, head_dim, page_size, latent));
           },
           nb::kw_only(), "keys"_a, "values"_a, "key_type"_a, "value_type"_a, "n_heads"_a, "head_dim"_a, "page_size"_a,
           "latent"_a);
  tape.def("norm", norm, nb::kw_only(), "n_rows"_a, "width"_a, "x"_a, "y"_a, "gain"_a, "sum"_a, "out"_a, "eps"_a, "scale"_a,
           "quantised_out"_a)
      .def("head_norm", head_norm, nb::kw_only(), "n_rows"_a, "n_heads"_a, "dim"_a, "x"_a, "gain"_a, "out"_a, "eps"_a)
      .def("columns", columns, nb::kw_only(), "n_rows"_a, "width"_a, "x_width"_a, "begin"_a, "x"_a, "out"_a)
      .def("join_heads", join_heads, nb::kw_only(), "n_rows"_a, "n_heads"_a, "x_dim"_a, "y_dim"_a, "x"_a, "y"_a, "out"_a)
      .def("layer_norm", layer_norm, nb::kw_only(), "n_rows"_a, "n_heads"_a, "width"_a, "x"_a, "y"_a, "gain"_a, "bias"_a, "sum"_a, "out"_a,
           "eps"_a, "scale"_a, "quantised_out"_a)
      .def("add", add, nb::kw_only(), "n_rows"_a, "width"_a, "x"_a, "y"_a, "out"_a, "scale"_a)
      .def("activate", activate, nb::kw_only(), "n_rows"_a, "width"_a, "gate"_a, "up"_a, "out"_a, "act"_a,
           "quantised_out"_a)
      .def("softcap", softcap, nb::kw_only(), "n_rows"_a, "width"_a, "x"_a, "out"_a, "cap"_a)
      .def("clip", clip, nb::kw_only(), "n_rows"_a, "width"_a, "x"_a, "out"_a, "limit"_a)
      .def("temper", temper, nb::kw_only(), "n_rows"_a, "width"_a, "positions"_a, "x"_a, "out"_a, "beta"_a, "period"_a,
           "offset"_a)
      .def("gather_rows", gather_rows, nb::kw_only(), "n_rows"_a, "width"_a, "rows"_a, "x"_a, "out"_a)
      .def("with_rows", with_rows, nb::kw_only(), "n_rows"_a, "width"_a, "buffer_width"_a, "begin"_a, "row_of"_a, "buffer"_a, "x"_a,
           "out"_a, "add"_a)
      .def("choose", choose, nb::kw_only(), "n_rows"_a, "logits"_a, "stride"_a, "n_vocab"_a, "params"_a, "edits"_a,
           "tokens"_a, "ids"_a)
      .def("store_rows", store_rows, nb::kw_only(), "n_rows"_a, "width"_a, "buffer_width"_a, "begin"_a, "row_target"_a, "x"_a,
           "buffer"_a)
      .def("cos_sin", cos_sin, nb::kw_only(), "n_rows"_a, "n_freqs"_a, "positions"_a, "inv_freq"_a, "axis_begins"_a, "out"_a,
           "scale"_a)
      .def("rope_and_cache", rope_and_cache, nb::kw_only(), "n_rows"_a, "n_q_heads"_a, "q"_a, "k"_a, "v"_a, "cos_sin"_a, "n_freqs"_a,
           "style"_a, "q_gain"_a, "k_gain"_a, "eps"_a, "key_mean"_a, "slots"_a, "kv"_a, "out"_a)
      .def("attention", attention, nb::kw_only(), "counts"_a, "positions"_a, "starts"_a, "lengths"_a, "page_table"_a,
           "n_pages_per_seq"_a, "n_q_heads"_a, "group"_a, "q"_a, "out"_a, "kv"_a, "scale"_a, "softcap"_a, "window"_a, "chunked"_a, "partials"_a,
           "n_spans"_a, "sinks"_a, "slopes"_a, "causal"_a, "quantised_out"_a, "plain"_a)
      .def("route", route, nb::kw_only(), "n_rows"_a, "scores"_a, "n_experts"_a, "n_active"_a, "renormalise"_a,
           "sigmoid"_a, "bias"_a, "n_groups"_a, "n_best_groups"_a, "group_top"_a, "scale"_a, "jitter"_a, "factors"_a, "experts"_a, "shares"_a)
      .def("mix", mix, nb::kw_only(), "n_rows"_a, "width"_a, "n_active"_a, "shares"_a, "x"_a, "out"_a)
      .def("lora", lora, nb::kw_only(), "n_tiles"_a, "tiles"_a, "rows"_a, "scales"_a, "most"_a, "n_cols"_a, "x"_a, "low"_a,
           "most_rank"_a, "targets"_a);
}

}  // namespace tahr
