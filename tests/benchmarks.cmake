# Every benchmark runs in small, so that it keeps working; whether it meets its bar means nothing here. Exit
# code 4 skips: the machine lacks fio, or the build folder is on a file system without direct I/O. Scripts use
# one thread, since threads that wait by spinning are slow where other work runs.
function(add_benchmark name)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 4 LABELS benchmark)
endfunction()

add_benchmark(adamw_bench_small adamw_bench --parameters 1 --rounds 1)
add_benchmark(matmul_bench_small matmul_bench 1 1 64)
add_benchmark(attention_bench_small attention_bench --small)
add_benchmark(experts_bench_small experts_bench --small)
add_benchmark(decode_bench_small decode_bench --small --dir ${CMAKE_BINARY_DIR})
add_benchmark(reduce_bench_small reduce_bench --small)
add_benchmark(nvme_bench_small nvme_bench --dir ${CMAKE_BINARY_DIR} --bytes 32MiB --rounds 1)
add_benchmark(planner_bench_small planner_bench --small)
add_benchmark(launch_bench_small launch_bench_emulated --small)
add_benchmark(trace_bench_small trace_bench --dir ${CMAKE_BINARY_DIR} --small)

find_program(PYTHON3 python3)
if(PYTHON3)
  set(small --small --threads 1 --build ${CMAKE_BINARY_DIR} --dir ${CMAKE_BINARY_DIR})
  set(scripts ${CMAKE_SOURCE_DIR}/tools/benchmarks)
  add_benchmark(adamw_small ${PYTHON3} -B ${scripts}/adamw.py ${small})
  add_benchmark(gpt2_small_small ${PYTHON3} -B ${scripts}/gpt2_small.py ${small} --precision bf16)
  add_benchmark(prediction_error_small ${PYTHON3} -B ${scripts}/prediction_error.py ${small} --steps 1)
  add_benchmark(placements_small ${PYTHON3} -B ${scripts}/placements.py ${small} --rounds 1)
  add_benchmark(levels_small ${PYTHON3} -B ${scripts}/levels.py ${small} --rounds 1)
  add_benchmark(bounds_small ${PYTHON3} -B ${scripts}/bounds.py ${small} --only "h200 llama-7b 16k")
  add_benchmark(step_gap_small ${PYTHON3} -B ${scripts}/step_gap.py ${small} --steps 4)
  add_benchmark(prepare_threads_small ${PYTHON3} -B ${scripts}/prepare_threads.py ${small})
  add_benchmark(experts_small ${PYTHON3} -B ${scripts}/experts.py ${small})
  add_benchmark(expert_predictions_small ${PYTHON3} -B ${scripts}/expert_predictions.py ${small})
  add_benchmark(predictions_small ${PYTHON3} -B ${scripts}/predictions.py ${small})
  add_benchmark(gpt2_xl_small ${PYTHON3} -B ${scripts}/gpt2_xl.py ${small})
  # A container may forbid processes to read each other's memory.
  add_benchmark(mpi_ranks_small ${PYTHON3} -B ${scripts}/mpi_ranks.py ${small} --mpirun
                "mpirun --allow-run-as-root --oversubscribe --mca btl_vader_single_copy_mechanism none")
  set_property(TEST mpi_ranks_small APPEND PROPERTY LABELS mpi)
  set_property(TEST mpi_ranks_small PROPERTY RESOURCE_LOCK mpi)
else()
  message(STATUS "python3 not found: the scripts of tools/benchmarks are not tested. Add it with:\n"
                 "   apt-get install --no-install-recommends python3")
endif()
