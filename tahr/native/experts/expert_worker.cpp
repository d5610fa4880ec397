#include "expert_worker.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "pause.h"

namespace tahr {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int N_PAUSES = 64;                       // between two looks at the clock
constexpr Seconds SPINNING{0.02};                  // after the last request; a device that takes longer is looked at now and then
constexpr std::chrono::microseconds NAP{50};
constexpr std::chrono::milliseconds FAILING_NAP{1};  // while one request hangs, and those after it fail at once
constexpr Seconds ENDING{1};                       // that threads have to end
constexpr int LOOKS_A_STALL = 20;
constexpr size_t MOST_FAILURES = 1024;

bool comes_after(uint32_t a, uint32_t b) { return int32_t(a - b) > 0; }

struct Failure {
  uint32_t number;
  std::string reason;
};

struct Request {
  uint32_t number;
  int32_t n_rows;
  const LayerTape* layer;  // null: there is none
};

}  // namespace

struct ExpertWorker::State {
  State(const Exchange& shared, const ExchangeSizes& sizes, double stall_s)
      : shared(shared), sizes(sizes), stall(stall_s), expected(*shared.served), owner(getpid()) {}

  uint32_t posted() const { return __atomic_load_n(shared.posted, __ATOMIC_ACQUIRE); }
  uint32_t served() const { return __atomic_load_n(shared.served, __ATOMIC_ACQUIRE); }
  bool is_missing() const { return expected.load() != served(); }
  bool is_waiting() const { return posted() != served(); }

  void compute_all();
  bool wait_for_request();
  std::string compute(const Request& request);
  const LayerTape* layer(int32_t number) const;
  void answer(const Request& request, const std::string& failure);
  void watch();
  void give_up(uint32_t number);
  void end_thread();

  const Exchange shared;
  const ExchangeSizes sizes;
  const Seconds stall;
  std::atomic<uint32_t> expected;
  std::atomic<bool> closing{false};
  const pid_t owner;

  mutable std::mutex mutex;  // guards all below, and every change of `served`
  std::condition_variable wake;
  std::deque<LayerTape> layers;
  std::vector<Failure> failures;
  bool is_computing = false;
  bool hangs = false;  // a request was given up that is still being computed
  int n_threads = 2;
  std::thread worker, watchdog;
};

// ---- the thread that computes ------------------------------------------------------------------------------------

void ExpertWorker::State::compute_all() {
  while (wait_for_request()) {
    Request request{};
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!is_waiting()) continue;  // given up in between
      request = {posted(), shared.facts[0], layer(shared.facts[1])};
      is_computing = true;
    }
    answer(request, compute(request));
  }
  end_thread();
}

bool ExpertWorker::State::wait_for_request() {
  for (auto idle = Clock::now(); !closing.load();) {
    if (is_waiting()) return true;
    if (!is_missing()) {
      std::unique_lock<std::mutex> lock(mutex);
      wake.wait(lock, [&] { return closing.load() || is_missing(); });
      idle = Clock::now();
      continue;
    }
    for (int i = 0; i < N_PAUSES && !is_waiting(); i++) pause();
    if (Clock::now() - idle > SPINNING) std::this_thread::sleep_for(NAP);
  }
  return false;
}

const LayerTape* ExpertWorker::State::layer(int32_t number) const {
  return number >= 0 && size_t(number) < layers.size() ? &layers[size_t(number)] : nullptr;
}

// Empty if the result is there. The tape sees copies, because the exchange may get the next request while it hangs. What a
// device has posted is checked: a step that was abandoned halfway may post the next request over it.
std::string ExpertWorker::State::compute(const Request& request) {
  if (!request.layer) return "a layer was asked for that is not there";
  if (request.n_rows < 0 || request.n_rows > sizes.most_rows) return "more rows were sent than a request has room for";
  const LayerTape& layer = *request.layer;
  const size_t n_rows = size_t(request.n_rows), n_pairs = n_rows * size_t(sizes.n_active);
  if (n_rows == 0) return "";
  *layer.n_rows = request.n_rows;
  memcpy(layer.rows, shared.rows, n_rows * size_t(sizes.width) * sizeof(float));
  memcpy(layer.experts, shared.experts, n_pairs * sizeof(int32_t));
  memcpy(layer.shares, shared.shares, n_pairs * sizeof(float));
  for (size_t i = 0; i < n_pairs; i++)
    if (layer.experts[i] < 0 || layer.experts[i] >= layer.n_experts) return "an expert was asked for that is not there";
  try {
    layer.run(layer.tape, layer.pool);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void ExpertWorker::State::answer(const Request& request, const std::string& failure) {
  std::lock_guard<std::mutex> lock(mutex);
  is_computing = false;
  if (hangs) {  // too late: the device has gone on
    hangs = false;
    return;
  }
  if (!failure.empty())
    failures.push_back({request.number, failure});
  else if (request.n_rows > 0)
    memcpy(shared.result, request.layer->result, size_t(request.n_rows * sizes.n_out) * sizeof(float));
  __atomic_store_n(shared.served, request.number, __ATOMIC_RELEASE);
}

// ---- the watchdog ------------------------------------------------------------------------------------------------

void ExpertWorker::State::watch() {
  std::unique_lock<std::mutex> lock(mutex);
  uint32_t number = served();
  auto since = Clock::now();
  while (!closing.load()) {
    if (hangs && is_missing())
      wake.wait_for(lock, FAILING_NAP);
    else if (is_missing())
      wake.wait_for(lock, stall / LOOKS_A_STALL);
    else
      wake.wait(lock, [&] { return closing.load() || is_missing(); });
    if (!is_waiting() || number != posted()) {
      number = posted();
      since = Clock::now();
    }
    if (is_waiting() && (hangs || Clock::now() - since >= stall)) give_up(number);
  }
  lock.unlock();
  end_thread();
}

void ExpertWorker::State::give_up(uint32_t number) {
  if (failures.size() < MOST_FAILURES) failures.push_back({number, "the CPU has not computed its experts in time"});
  hangs = is_computing;
  __atomic_store_n(shared.served, number, __ATOMIC_RELEASE);
}

void ExpertWorker::State::end_thread() {
  std::lock_guard<std::mutex> lock(mutex);
  n_threads--;
  wake.notify_all();
}

// ---- what others call --------------------------------------------------------------------------------------------

ExpertWorker::ExpertWorker(const Exchange& shared, const ExchangeSizes& sizes, double stall_s)
    : state_(std::make_shared<State>(shared, sizes, stall_s)) {
  state_->worker = std::thread([state = state_] { state->compute_all(); });
  state_->watchdog = std::thread([state = state_] { state->watch(); });
}

ExpertWorker::~ExpertWorker() { close(); }

int ExpertWorker::add(const LayerTape& layer) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->layers.push_back(layer);
  return int(state_->layers.size()) - 1;
}

void ExpertWorker::expect(int n) {
  if (getpid() != state_->owner) throw std::runtime_error("This process is a fork: the threads of its experts are in the other one.");
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->expected += uint32_t(n);
  state_->wake.notify_all();
}

uint32_t ExpertWorker::n_expected() const { return state_->expected.load(); }

bool ExpertWorker::wait(uint32_t number, Seconds most) const {
  const auto began = Clock::now();
  while (comes_after(number, state_->served())) {
    if (Clock::now() - began > most) return false;
    std::this_thread::sleep_for(NAP);
  }
  return true;
}

std::string ExpertWorker::take_failure(uint32_t first, uint32_t last) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  std::string found;
  std::vector<Failure> later;
  for (auto& failure : state_->failures) {
    if (comes_after(failure.number, last)) later.push_back(failure);
    else if (comes_after(failure.number, first) && found.empty()) found = failure.reason;
  }
  state_->failures = std::move(later);
  return found;
}

// Threads that hang, and those of the process that this one was forked from, cannot be joined: what they see stays.
bool ExpertWorker::close() {
  if (is_closed_) return has_ended_;
  is_closed_ = true;
  const auto& state = state_;
  if (getpid() != state->owner) {
    new std::shared_ptr<State>(state);
    return false;
  }
  std::unique_lock<std::mutex> lock(state->mutex);
  state->closing.store(true);
  state->wake.notify_all();
  has_ended_ = state->wake.wait_for(lock, ENDING, [&] { return state->n_threads == 0; });
  lock.unlock();
  for (auto* thread : {&state->worker, &state->watchdog}) has_ended_ ? thread->join() : thread->detach();
  return has_ended_;
}

}  // namespace tahr
