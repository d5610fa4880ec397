// Sums and maxima over a whole workgroup, always in the same order.
shared float group_parts[128];  // one of each subgroup: 1024 invocations in subgroups of 8

float group_sum(float x) {
  x = subgroupAdd(x);
  barrier();
  if (gl_SubgroupInvocationID == 0) group_parts[gl_SubgroupID] = x;
  barrier();
  float sum = 0;
  for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) sum += group_parts[i];
  return subgroupAdd(sum);
}
