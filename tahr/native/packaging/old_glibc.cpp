// What GCC's static C++ library and newer headers ask of glibc, for systems whose glibc is older than that: only wheels
// link this file, and it must define nothing that glibc 2.28 has.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

extern "C" {

// glibc 2.32. "Maybe several threads" is always true, and only slower.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// glibc 2.33. On 64-bit systems the kernel's record is the C library's.
__attribute__((visibility("hidden"))) int fstat64(int file, struct stat64* found) {
  return static_cast<int>(syscall(SYS_fstat, file, found));
}

// glibc 2.36. `std::random_device` may ask for it.
__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t number = 0;
  while (syscall(SYS_getrandom, &number, sizeof number, 0) != static_cast<long>(sizeof number)) {
  }
  return number;
}

}  // extern "C"
