// What kernels.inc includes. Source files include this before they set the compiler's target,
// because code that several of them share must run on every processor.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <type_traits>

#include "buffer.hpp"
#include "instruction_set.hpp"
#include "team.hpp"

#ifdef RECURRENT_X86
#include <immintrin.h>
#endif
