// A captured CUDA graph that meets the CPU: it posts rows and router scores, waits, and takes the result.
//
// Requests are numbered by a counter on the device, so a graph can be replayed without being told anything. Request k is
// number k % n_sets of those given, so that the caches of the CPU do not hold the experts it needs.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "worker.h"

#define CHECK(call)                                                              \
  if (const int error = int(call)) {                                             \
    std::fprintf(stderr, "%s: error %d in line %d\n", #call, error, __LINE__);   \
    std::exit(1);                                                                \
  }

constexpr int THREADS = 512;
constexpr uint64_t PATIENCE_NS = 20'000'000'000;

struct Options {
  int n_blocks, n_sets, n_meetings;
  int waits;                // 1: the stream waits for a word in memory; 0: a kernel polls it
  int n_values, n_scores;   // f32 numbers of the rows of a request, and of their scores
  Tape tape;
  const float* requests;    // [n_sets, n_values + n_scores], on the host
};

// What the kernels see: all on the device, but for the mailbox and what it points at.
struct View {
  int n_sets, n_request, n_result;
  const float* requests;
  float* results;  // [n_sets, n_result]; 0: not yet there
  uint32_t *number, *arrived;  // the last request; blocks that have sent their part of the next
  Mailbox* mail;
  float *request, *result;  // of the mailbox
};

// The last block to arrive posts the number, when the CPU can see all of the request.
__global__ void send(View v) {
  const uint32_t number = *v.number + 1;
  const float* from = v.requests + size_t(number % v.n_sets) * v.n_request;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < v.n_request; i += gridDim.x * THREADS) v.request[i] = from[i];
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x > 0 || atomicAdd(v.arrived, 1u) + 1 < gridDim.x) return;
  *v.arrived = 0;
  *v.number = number;
  __threadfence_system();
  *reinterpret_cast<volatile uint32_t*>(&v.mail->posted) = number;
}

__device__ bool is_served(const Mailbox* mail, uint32_t number) {
  uint32_t found;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(&mail->served) : "memory");
  return found == number;
}

__device__ uint64_t now_ns() {
  uint64_t found;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(found));
  return found;
}

__global__ void receive(View v, bool polls) {
  const uint32_t number = *v.number;
  if (polls && threadIdx.x == 0)
    for (const uint64_t began = now_ns(); !is_served(v.mail, number);)
      if (now_ns() - began > PATIENCE_NS) {  // a wait without an end would hang the device
        v.mail->failed = 1;
        break;
      }
  __syncthreads();
  float* to = v.results + size_t(number % v.n_sets) * v.n_result;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < v.n_result; i += gridDim.x * THREADS) {
    const float found = reinterpret_cast<const volatile float*>(v.result)[i], before = to[i];
    if (before != 0 && before != found) v.mail->failed = 2;
    to[i] = found;
  }
  if (!polls && blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<volatile uint32_t*>(&v.mail->released) = 0;
}

template <class T>
T* memory(size_t n, bool pinned) {
  T* found;
  CHECK(pinned ? cudaMallocHost(&found, n * sizeof(T)) : cudaMalloc(&found, n * sizeof(T)));
  if (pinned)
    std::memset(static_cast<void*>(found), 0, n * sizeof(T));
  else
    CHECK(cudaMemset(found, 0, n * sizeof(T)));
  return found;
}

struct Meeting {
  View view;
  cudaStream_t stream;
  cudaGraphExec_t graph;
  std::unique_ptr<Server> server;
};

void capture(Meeting& m, const Options& options) {
  using Wait = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  const auto wait = reinterpret_cast<Wait>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamWaitValue32_v2"));
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(m.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < options.n_meetings; i++) {
    send<<<options.n_blocks, THREADS, 0, m.stream>>>(m.view);
    if (options.waits) CHECK(wait(m.stream, CUdeviceptr(&m.view.mail->released), 1, CU_STREAM_WAIT_VALUE_EQ));
    receive<<<options.n_blocks, THREADS, 0, m.stream>>>(m.view, !options.waits);
  }
  CHECK(cudaStreamEndCapture(m.stream, &graph));
  CHECK(cudaGraphInstantiate(&m.graph, graph, 0));
}

extern "C" {

Meeting* meeting_open(const Options* options) {
  const int n_values = options->n_values, n_scores = options->n_scores, n_request = n_values + n_scores;
  const size_t n_sets = size_t(options->n_sets);
  float* requests = memory<float>(n_sets * n_request, false);
  CHECK(cudaMemcpy(requests, options->requests, n_sets * n_request * sizeof(float), cudaMemcpyHostToDevice));
  float *results = memory<float>(n_sets * n_values, false), *request = memory<float>(n_request, true),
        *result = memory<float>(n_values, true);
  auto* counters = memory<uint32_t>(2, false);
  auto* mail = memory<Mailbox>(1, true);
  CHECK(cudaDeviceSynchronize());
  mail->request = request;
  mail->result = result;
  auto* m = new Meeting{{options->n_sets, n_request, n_values, requests, results, counters, counters + 1, mail, request, result}};
  CHECK(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
  capture(*m, *options);
  m->server = std::make_unique<Server>(*mail, options->tape, n_values * sizeof(float), n_scores * sizeof(float));
  return m;
}

// Replays the graph so many times, one behind the other, and waits for the last; what failed, or 0.
int meeting_replay(Meeting* m, int n_replays) {
  for (int i = 0; i < n_replays; i++) CHECK(cudaGraphLaunch(m->graph, m->stream));
  CHECK(cudaStreamSynchronize(m->stream));
  return int(m->view.mail->failed);
}

// Gives out the last result of every request and ends the thread. The memory ends with the process.
void meeting_close(Meeting* m, float* results) {
  CHECK(cudaMemcpy(results, m->view.results, sizeof(float) * m->view.n_sets * m->view.n_result, cudaMemcpyDeviceToHost));
  delete m;
}
}
