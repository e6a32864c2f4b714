// What kernels.inc needs of others. A source includes this before it tells the compiler its target:
// what several sources compile alike must run everywhere.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <type_traits>

#include "buffer.hpp"
#include "instruction_set.hpp"
#include "team.hpp"

#ifdef RECURRENT_X86
#include <immintrin.h>
#endif
