// The Python module `tahr._vulkan`.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "device.h"
#include "failure.h"
#include "released_gil.h"
#include "tape.h"

namespace tahr::vulkan {

namespace nb = nanobind;
using namespace nb::literals;
namespace {

using Pair = std::pair<uint64_t, uint64_t>;
using HostBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using GivenBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::vector<T> numbers(const nb::bytes& bytes) {
  if (bytes.size() % sizeof(T)) throw nb::value_error("These bytes are no whole numbers.");
  std::vector<T> found(bytes.size() / sizeof(T));
  std::memcpy(found.data(), bytes.c_str(), bytes.size());
  return found;
}

nb::bytes as_bytes(const std::vector<std::byte>& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

Ranges ranges(const std::vector<Pair>& pairs) {
  Ranges found;
  for (const auto& [begin, n_bytes] : pairs) found.push_back({begin, n_bytes});
  return found;
}

std::vector<DeviceFacts> probe_devices(int timeout_s) {
  const ReleasedGil released;
  return probe(timeout_s);
}

std::shared_ptr<Device> open_device(int index, const nb::bytes& cache) {
  const std::vector<std::byte> kept = numbers<std::byte>(cache);
  const ReleasedGil released;
  return Device::open(index, kept);
}

Pair memory_bytes(const Device& device) {
  Pair found;
  device.memory_bytes(&found.first, &found.second);
  return found;
}

// The memory of a buffer as an array that keeps it.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig> view(const std::shared_ptr<Buffer>& buffer) {
  if (!buffer->host) throw nb::value_error("The host does not see this memory.");
  auto* kept = new std::shared_ptr<Buffer>(buffer);
  const nb::capsule owner(kept, [](void* made) noexcept { delete static_cast<std::shared_ptr<Buffer>*>(made); });
  return {reinterpret_cast<uint8_t*>(buffer->host), {size_t(buffer->n_bytes)}, owner};
}

void write(Buffer& self, uint64_t at, const GivenBytes& data, Buffer& staging) {
  const ReleasedGil released;
  self.write(at, data.data(), data.size(), staging);
}

void read(Buffer& self, uint64_t at, const HostBytes& data, Buffer& staging) {
  const ReleasedGil released;
  self.read(at, data.data(), data.size(), staging);
}

size_t append(Tape& self, std::shared_ptr<Pipeline> pipeline, const nb::bytes& push, std::array<uint32_t, 3> groups,
              const std::vector<Pair>& reads, const std::vector<Pair>& writes) {
  if (push.size() > PUSH_BYTES) throw nb::value_error("An op has at most 128 bytes of constants.");
  Op op{std::move(pipeline), {}, uint32_t(push.size()), groups, ranges(reads), ranges(writes)};
  std::memcpy(op.push.data(), push.c_str(), push.size());
  return self.append(std::move(op));
}

std::shared_ptr<Recording> record(const Tape& self, int order, uint32_t seed, size_t n_segments, bool timed) {
  const ReleasedGil released;  // shaders may be compiling
  return self.record(Order(order), seed, n_segments, timed);
}

}  // namespace

NB_MODULE(_vulkan, m) {
  m.doc() = "Vulkan devices: memory, pipelines, and ops recorded as command buffers.";
  nb::set_leak_warnings(false);  // Python may end with a frozen heap, whose objects it never frees
  const nb::exception<DeviceError> error(m, "DeviceError");
  nb::exception<DeviceFull>(m, "DeviceFull", error.ptr());
  nb::exception<DeviceLost>(m, "DeviceLost", error.ptr());
  m.attr("AS_ENQUEUED") = int(Order::as_enqueued);
  m.attr("BARRIER_AFTER_EACH") = int(Order::barrier_after_each);
  m.attr("PERMUTED") = int(Order::permuted);

  nb::class_<DeviceFacts>(m, "DeviceFacts")
      .def_prop_ro("name", [](const DeviceFacts& self) { return std::string(self.name); })
      .def_prop_ro("driver", [](const DeviceFacts& self) { return std::string(self.driver); })
      .def_prop_ro("missing", [](const DeviceFacts& self) { return std::string(self.missing); })
      .def_prop_ro("driver_id", [](const DeviceFacts& self) { return nb::bytes(self.driver_id, sizeof self.driver_id); })
      .def_ro("type", &DeviceFacts::type)
      .def_ro("api_version", &DeviceFacts::api_version)
      .def_ro("driver_version", &DeviceFacts::driver_version)
      .def_ro("subgroup_size", &DeviceFacts::subgroup_size)
      .def_ro("shared_bytes", &DeviceFacts::shared_bytes)
      .def_ro("memory_bytes", &DeviceFacts::memory_bytes)
      .def_prop_ro("matrix", [](const DeviceFacts& self) { return std::array{self.matrix[0], self.matrix[1], self.matrix[2]}; });
  m.def("probe", probe_devices, "timeout_s"_a, "The devices of this machine, asked for in a child process.");

  nb::enum_<Home>(m, "Home").value("DEVICE", Home::device).value("SHARED", Home::shared).value("HOST", Home::host);
  nb::class_<Device>(m, "Device")
      .def_ro("facts", &Device::facts)
      .def_prop_ro("is_unified", &Device::is_unified)
      .def("memory_bytes", memory_bytes, "Free bytes of its memory, and all.")
      .def("cache_data", [](const Device& self) { return as_bytes(self.cache_data()); })
      .def("wait", [](Device& self) {
        const ReleasedGil released;
        self.wait_all();
      });
  m.def("open", open_device, "index"_a, "cache"_a);

  nb::class_<Buffer>(m, "Buffer")
      .def(nb::new_([](std::shared_ptr<Device> device, uint64_t n_bytes, Home home) {
             return std::make_shared<Buffer>(std::move(device), n_bytes, home);
           }),
           "device"_a, "n_bytes"_a, "home"_a)
      .def_ro("address", &Buffer::address)
      .def_ro("n_bytes", &Buffer::n_bytes)
      .def("view", view, nb::rv_policy::reference)
      .def("write", write, "at"_a, "data"_a, "staging"_a)
      .def("read", read, "at"_a, "data"_a, "staging"_a)
      .def("fill", &Buffer::fill, "at"_a, "n_bytes"_a, "word"_a)
      .def("copy", &Buffer::copy, "source"_a, "parts"_a);

  nb::class_<Pipeline>(m, "Pipeline")
      .def(nb::new_([](std::shared_ptr<Device> device, const nb::bytes& code, std::vector<uint32_t> constants) {
             return std::make_shared<Pipeline>(std::move(device), numbers<uint32_t>(code), std::move(constants));
           }),
           "device"_a, "code"_a, "constants"_a);

  nb::class_<Tape>(m, "Tape")
      .def(nb::init<std::shared_ptr<Device>>(), "device"_a)
      .def("__len__", &Tape::size)
      .def("append", append, "pipeline"_a, "push"_a, "groups"_a, "reads"_a, "writes"_a)
      .def("patch", [](Tape& self, size_t op, uint32_t at, Pair written) { self.patch(op, at, {written.first, written.second}); },
           "op"_a, "push_at"_a, "written"_a)
      .def("clear", &Tape::clear)
      .def_prop_ro("n_runs", [](const Tape& self) { return self.runs().size(); })
      .def("record", record, "order"_a = 0, "seed"_a = 0, "n_segments"_a = 1, "timed"_a = false)
      .def("run_declared", [](const Tape& self) {
        const ReleasedGil released;
        self.run_declared();
      });

  nb::class_<Recording>(m, "Recording")
      .def("run", [](Recording& self) {
        const ReleasedGil released;
        self.run();
      })
      .def("wait", [](Recording& self) {
        const ReleasedGil released;
        self.wait();
      })
      .def_prop_ro("op_times", &Recording::op_times)
      .def_prop_ro("last_wait_ns", &Recording::last_wait_ns);
}

}  // namespace tahr::vulkan
