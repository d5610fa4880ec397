// What all kernels share: memory by its address, and arithmetic that must not depend on the driver.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_clustered : require

layout(local_size_x_id = 0) in;  // constant 0 of every kernel

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Ints { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Floats2 { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Words2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Floats4 { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Words4 { uvec4 v[]; };

#define INFINITY uintBitsToFloat(0x7F800000u)
#define LEAST_NORMAL uintBitsToFloat(0x00800000u)

// a / b, correctly rounded: drivers may divide less exactly, and rounding to int8 must not depend on them.
float divided(float a, float b) {
  precise float inverse = 1.0 / b;
  precise float quotient = a * inverse;
  precise float rest = fma(-quotient, b, a);
  precise float better = fma(rest, inverse, quotient);
  return isinf(better) || isnan(better) ? a / b : better;
}

// The scale of a block of int8 numbers, and what rounds to it; a subnormal scale makes all of them 0.
vec2 int8_scales(float most) {
  const float scale = divided(most, 127.0);
  return scale < LEAST_NORMAL ? vec2(0) : vec2(scale, divided(1.0, scale));
}

uint to_bf16(float x) {
  const uint bits = floatBitsToUint(x);
  return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}
