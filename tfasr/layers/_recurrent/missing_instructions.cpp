// Emulates AMX-TILE, AMX-BF16 and VDPBF16PS one instruction at a time, after the "Intel 64 and
// IA-32 Architectures Software Developer's Manual", volume 2, and Intel's "Architecture Instruction
// Set Extensions Programming Reference". Plain C++ accesses memory, so that sanitizers check it.
#include "missing_instructions.hpp"

#ifdef RECURRENT_INTERPRETS
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace recurrent {
namespace {

std::atomic<std::uint64_t> of_tiles{0}, of_pair_products{0};

void hold(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "an instruction of tiles or bfloat16 needs %s\n", what);
  std::abort();
}

float widened(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class Value>
Value read(const void* from, std::size_t offset = 0) {
  Value value;
  std::memcpy(&value, static_cast<const std::uint8_t*>(from) + offset, sizeof value);
  return value;
}

// An interrupted thread's registers. They are in the signal's frame, from which the system restores
// them when the handler returns.
class Machine {
 public:
  explicit Machine(ucontext_t& context)
      : general_(context.uc_mcontext.gregs),
        vectors_(reinterpret_cast<std::uint8_t*>(context.uc_mcontext.fpregs)) {}

  const std::uint8_t* code() const { return reinterpret_cast<const std::uint8_t*>(at(REG_RIP)); }
  void skip(std::size_t bytes) { general_[REG_RIP] += static_cast<greg_t>(bytes); }

  std::uint64_t general(int number) const {
    constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                 REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                 REG_R12, REG_R13, REG_R14, REG_R15};
    return at(kPlaces[number]);
  }

  // These two copy a 512-bit register from the frame and to it.
  void get_vector(int number, std::uint8_t (&bytes)[64]) {
    each_part(number, [&](std::uint8_t* part, bool used, std::size_t begin, std::size_t size) {
      if (used) {
        std::memcpy(bytes + begin, part, size);
      } else {
        std::memset(bytes + begin, 0, size);
      }
    });
  }
  void set_vector(int number, const std::uint8_t (&bytes)[64]) {
    each_part(number, [&](std::uint8_t* part, bool used, std::size_t begin, std::size_t size) {
      hold(used, "the vectors' registers in use");
      std::memcpy(part, bytes + begin, size);
    });
  }

 private:
  std::uint64_t at(int place) const { return static_cast<std::uint64_t>(general_[place]); }

  // XSAVE's standard format stores registers 0 to 15 in three parts, the others in one.
  template <class Then>
  void each_part(int number, const Then& then) {
    const auto n = static_cast<std::size_t>(number);
    const auto used = read<std::uint64_t>(vectors_, 512);  // XSTATE_BV
    const auto part = [&](unsigned component, std::size_t offset, std::size_t begin,
                          std::size_t size) {
      then(vectors_ + offset, (used >> component & 1) != 0, begin, size);
    };
    if (number < 16) {
      part(1, 160 + 16 * n, 0, 16);
      part(2, offset_of(2) + 16 * n, 16, 16);
      part(6, offset_of(6) + 32 * n, 32, 32);
    } else {
      part(7, offset_of(7) + 64 * (n - 16), 0, 64);
    }
  }

  static std::size_t offset_of(unsigned component) {
    unsigned size = 0, offset = 0, ecx = 0, edx = 0;
    __get_cpuid_count(0xD, component, &size, &offset, &ecx, &edx);
    return offset;
  }

  greg_t* general_;
  std::uint8_t* vectors_;
};

// What an instruction's bytes ModRM, SIB and displacement encode: a register or an address.
struct Operand {
  int reg = 0, rm = 0;  // three bits each
  bool memory = false, with_index = false;
  int base = -1, index = -1, scale = 0;
  std::int64_t displacement = 0;
  std::size_t length = 0;  // of these bytes

  std::uint64_t start(const Machine& machine, std::uint64_t next) const {
    const std::uint64_t from = base < 0 ? next : machine.general(base);
    return from + static_cast<std::uint64_t>(displacement);
  }
  std::uint64_t step(const Machine& machine) const {
    return index < 0 ? 0 : machine.general(index) << scale;
  }
};

// `x` and `b` are the prefix's bits that extend index and base; a displacement of one byte counts
// units of `unit` bytes.
Operand operand_at(const std::uint8_t* code, bool x, bool b, int unit) {
  Operand found;
  const int mode = code[0] >> 6;
  found.reg = code[0] >> 3 & 7;
  found.rm = code[0] & 7;
  found.length = 1;
  if (mode == 3) return found;
  found.memory = true;
  found.base = found.rm + 8 * b;
  bool absolute = mode == 0 && found.rm == 5;  // relative to the next instruction
  if (absolute) found.base = -1;
  if (found.rm == 4) {
    const std::uint8_t sib = code[found.length++];
    found.with_index = true;
    found.scale = sib >> 6;
    found.index = (sib >> 3 & 7) + 8 * x;
    if (found.index == 4) found.index = -1;
    found.base = (sib & 7) + 8 * b;
    hold(mode != 0 || (sib & 7) != 5, "a base register");
  }
  if (mode == 1) {
    found.displacement = static_cast<std::int8_t>(code[found.length]) * unit;
    found.length += 1;
  } else if (mode == 2 || absolute) {
    found.displacement = read<std::int32_t>(code, found.length);
    found.length += 4;
  }
  return found;
}

// A thread's eight tiles.
class Tiles {
 public:
  bool configured() const { return configured_; }
  void release() { *this = Tiles(); }

  void configure(const std::uint8_t* from) {
    release();
    hold(from[0] == 1 && from[1] == 0, "palette 1 and no row to start from");
    for (int byte = 2; byte < 16; ++byte) hold(from[byte] == 0, "reserved bytes of zero");
    for (std::size_t tile = 0; tile < 16; ++tile) {
      const auto bytes = read<std::uint16_t>(from, 16 + 2 * tile);
      const std::uint8_t rows = from[48 + tile];
      hold(tile < 8 ? bytes <= 64 && rows <= 16 : bytes == 0 && rows == 0, "sizes of tiles");
      hold((bytes == 0) == (rows == 0), "rows and bytes, or neither");
      if (tile < 8) tiles_[tile].bytes = bytes, tiles_[tile].rows = rows;
    }
    configured_ = true;
  }

  void zero(int tile) { std::memset(sized(tile).content, 0, sizeof(Content)); }

  void load(int tile, std::uint64_t start, std::uint64_t step) {
    zero(tile);
    Tile& to = sized(tile);
    for (std::size_t row = 0; row < to.rows; ++row) {
      std::memcpy(to.content[row], reinterpret_cast<const void*>(start + row * step), to.bytes);
    }
  }

  void store(int tile, std::uint64_t start, std::uint64_t step) {
    const Tile& from = sized(tile);
    for (std::size_t row = 0; row < from.rows; ++row) {
      std::memcpy(reinterpret_cast<void*>(start + row * step), from.content[row], from.bytes);
    }
  }

  // sums += a b, with bfloat16 in pairs: sums the pairs' first numbers and second numbers
  // separately, then adds both sums.
  void add_product(int sums, int a, int b) {
    Tile& to = sized(sums);
    const Tile &left = sized(a), &right = sized(b);
    hold(sums != a && sums != b && a != b, "three tiles");
    hold(to.rows == left.rows && to.bytes == right.bytes && left.bytes == 4 * right.rows,
         "tiles that fit each other");
    for (std::size_t row = 0; row < to.rows; ++row) {
      for (std::size_t lane = 0; lane < to.bytes / 4u; ++lane) {
        float parts[2] = {};
        for (std::size_t k = 0; k < right.rows; ++k) {
          for (std::size_t half = 0; half < 2; ++half) {
            parts[half] = std::fma(widened(read<std::uint16_t>(left.content[row], 4 * k + 2 * half)),
                                   widened(read<std::uint16_t>(right.content[k], 4 * lane + 2 * half)),
                                   parts[half]);
          }
        }
        const float sum = read<float>(to.content[row], 4 * lane) + (parts[0] + parts[1]);
        std::memcpy(to.content[row] + 4 * lane, &sum, sizeof sum);
      }
    }
  }

 private:
  using Content = std::uint8_t[16][64];
  struct Tile {
    std::size_t rows = 0, bytes = 0;
    Content content = {};
  };

  Tile& sized(int tile) {
    hold(configured_ && tiles_[tile].rows > 0, "a tile that is configured");
    return tiles_[tile];
  }

  bool configured_ = false;
  Tile tiles_[8];
};

thread_local Tiles tiles;

enum Prefix { kNone, k66, kF3, kF2 };

// Executes a tile instruction and returns its length; 0 for any other instruction.
std::size_t carry_out_tiles(const std::uint8_t* code, const Machine& machine) {
  // A VEX prefix of three bytes with the opcode map 0F 38 and without the bits W and L.
  if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || (code[2] & 0x84) != 0) return 0;
  const auto prefix = static_cast<Prefix>(code[2] & 3);
  const int third = ~code[2] >> 3 & 15;
  const std::uint8_t operation = code[3];
  const Operand operand = operand_at(code + 4, !(code[1] & 0x40), !(code[1] & 0x20), 1);
  const std::size_t length = 4 + operand.length;
  const auto next = reinterpret_cast<std::uint64_t>(code) + length;
  if (operation == 0x49 && prefix == kNone && operand.memory) {
    tiles.configure(reinterpret_cast<const std::uint8_t*>(operand.start(machine, next)));
  } else if (operation == 0x49 && prefix == kNone && operand.reg == 0 && operand.rm == 0) {
    tiles.release();
  } else if (operation == 0x49 && prefix == kF2 && !operand.memory && operand.rm == 0) {
    tiles.zero(operand.reg);
  } else if (operation == 0x4B && operand.with_index && (prefix == kF2 || prefix == k66)) {
    tiles.load(operand.reg, operand.start(machine, next), operand.step(machine));
  } else if (operation == 0x4B && operand.with_index && prefix == kF3) {
    tiles.store(operand.reg, operand.start(machine, next), operand.step(machine));
  } else if (operation == 0x5C && prefix == kF3 && !operand.memory) {
    tiles.add_product(operand.reg, operand.rm, third);
  } else {
    return 0;
  }
  of_tiles.fetch_add(1, std::memory_order_relaxed);
  return length;
}

// Executes an unmasked 512-bit VDPBF16PS and returns its length; 0 for any other instruction.
std::size_t carry_out_pair_product(const std::uint8_t* code, Machine& machine) {
  // An EVEX prefix with the opcode map 0F 38 and the prefix F3, without the bit W.
  if (code[0] != 0x62 || (code[1] & 0x0F) != 2 || (code[2] & 0x87) != 6 || code[4] != 0x52) return 0;
  const bool one_for_all = code[3] & 0x10;
  if ((code[3] & 0xE7) != 0x40) return 0;
  const bool x = !(code[1] & 0x40), b = !(code[1] & 0x20);
  const Operand operand = operand_at(code + 5, x, b, one_for_all ? 4 : 64);
  const std::size_t length = 5 + operand.length;
  const int sums = operand.reg + 8 * !(code[1] & 0x80) + 16 * !(code[1] & 0x10);
  const int left = (~code[2] >> 3 & 15) + 16 * !(code[3] & 0x08);
  std::uint8_t to[64], a[64], from[64];
  machine.get_vector(sums, to);
  machine.get_vector(left, a);
  if (!operand.memory) {
    hold(!one_for_all, "memory for one pair to all");
    machine.get_vector(operand.rm + 8 * b + 16 * x, from);
  } else {
    const auto next = reinterpret_cast<std::uint64_t>(code) + length;
    const auto* place = reinterpret_cast<const std::uint8_t*>(operand.start(machine, next) +
                                                              operand.step(machine));
    const std::size_t size = one_for_all ? 4 : 64;
    for (std::size_t begin = 0; begin < 64; begin += size) std::memcpy(from + begin, place, size);
  }
  for (std::size_t lane = 0; lane < 64; lane += 4) {
    auto sum = read<float>(to, lane);
    for (const std::size_t half : {2, 0}) {
      sum = std::fma(widened(read<std::uint16_t>(a, lane + half)),
                     widened(read<std::uint16_t>(from, lane + half)), sum);
    }
    std::memcpy(to + lane, &sum, sizeof sum);
  }
  machine.set_vector(sums, to);
  of_pair_products.fetch_add(1, std::memory_order_relaxed);
  return length;
}

void on_refused(int, siginfo_t*, void* context) {
  Machine machine(*static_cast<ucontext_t*>(context));
  std::size_t length = carry_out_tiles(machine.code(), machine);
  if (length == 0) length = carry_out_pair_product(machine.code(), machine);
  if (length == 0) {
    signal(SIGILL, SIG_DFL);  // the instruction runs again, is refused again and ends the process
    return;
  }
  machine.skip(length);
}

}  // namespace

void carry_out_missing_instructions() {
  struct sigaction action = {};
  action.sa_sigaction = on_refused;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

CarriedOut carried_out() { return {of_tiles.load(), of_pair_products.load()}; }

bool tiles_in_use() { return tiles.configured(); }

}  // namespace recurrent
#else

namespace recurrent {

void carry_out_missing_instructions() {}
CarriedOut carried_out() { return {}; }
bool tiles_in_use() { return false; }

}  // namespace recurrent
#endif
