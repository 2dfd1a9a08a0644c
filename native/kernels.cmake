# The arithmetic kernels: plain C++ that knows neither MLX nor Python. native/tests builds them without either.
find_package(Threads REQUIRED)
set(pomona_src ${CMAKE_CURRENT_LIST_DIR}/src)

add_library(pomona_kernels STATIC
  ${pomona_src}/attention.cpp
  ${pomona_src}/candidates.cpp
  ${pomona_src}/choice.cpp
  ${pomona_src}/chosen.cpp
  ${pomona_src}/delta.cpp
  ${pomona_src}/elements.cpp
  ${pomona_src}/instruction_set.cpp
  ${pomona_src}/instructions/avx2.cpp
  ${pomona_src}/instructions/avx512.cpp
  ${pomona_src}/instructions/neon.cpp
  ${pomona_src}/instructions/portable.cpp
  ${pomona_src}/linear.cpp
  ${pomona_src}/mapped_ranges.cpp
  ${pomona_src}/memory.cpp
  ${pomona_src}/pool.cpp
  ${pomona_src}/ranges.cpp
  ${pomona_src}/reads.cpp
  ${pomona_src}/routing.cpp
  ${pomona_src}/rows.cpp)
target_include_directories(pomona_kernels PUBLIC ${pomona_src})
target_link_libraries(pomona_kernels PUBLIC Threads::Threads)
target_compile_options(pomona_kernels PRIVATE -Wall -Wextra)
set_target_properties(pomona_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)

# Which of these runs is chosen at run time, so each is compiled for its own processors (elsewhere it is empty).
# No contraction: whether a product and a sum are rounded together is written in the source, and decides bits.
# GCC 12 takes its own undefined vectors, and sums that are written through a reference, for uninitialized.
set(pomona_exact -O3 -ffp-contract=off $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(pomona_avx2 ${pomona_exact} -mavx2 -mfma -mf16c)
set(pomona_avx512 ${pomona_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set_source_files_properties(${pomona_src}/instructions/portable.cpp ${pomona_src}/instructions/neon.cpp
  PROPERTIES COMPILE_OPTIONS "${pomona_exact}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set_source_files_properties(${pomona_src}/instructions/avx2.cpp PROPERTIES COMPILE_OPTIONS "${pomona_avx2}")
  set_source_files_properties(${pomona_src}/instructions/avx512.cpp PROPERTIES COMPILE_OPTIONS "${pomona_avx512}")
endif()
