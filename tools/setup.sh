#!/usr/bin/env bash
# Installs missing packages for building gptrain (Debian 12 and later, Ubuntu 22.04 and later). If nothing is missing,
# changes nothing and needs neither root nor a network.
#   tools/setup.sh           packages for the build
#   tools/setup.sh --tests   also those for the tests
#   tools/setup.sh --tests --slurm   also Slurm, which tests/slurm starts
#   tools/setup.sh --tests --full    also those for the full suite: Slurm, strace, clang's libFuzzer
#   tools/setup.sh --parquet   packages for the build, and Arrow's library, with which gptrain reads Parquet files
set -euo pipefail
source "$(dirname "$0")/common.sh"

case "$*" in
  '') tests=no slurm=no full=no parquet=no ;;
  --parquet) tests=no slurm=no full=no parquet=yes ;;
  --tests) tests=yes slurm=no full=no parquet=no ;;
  '--tests --slurm') tests=yes slurm=yes full=no parquet=no ;;
  '--tests --full') tests=yes slurm=yes full=yes parquet=no ;;
  *) die "usage: tools/setup.sh [--tests [--slurm | --full] | --parquet]" ;;
esac

at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }
has_compiler() {
  local compiler=${CXX:-g++}
  command -v "$compiler" >/dev/null && at_least 12 "$("$compiler" -dumpversion)"
}
has_meson() { command -v meson >/dev/null && at_least 1.0.1 "$(meson --version)"; }
has_header() {
  local compiler=${CXX:-g++}
  command -v "$compiler" >/dev/null && echo "#include <$1>" | "$compiler" -x c++ -std=c++20 -E - >/dev/null 2>&1
}

# libFuzzer comes with clang, on some systems in a separate package that clang depends on.
has_fuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer -x c++ - -o "$LOGS/fuzzer-probe" >/dev/null 2>&1
}
has_admin_tool() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null; }
has_library() { compgen -G "/usr/lib/*/$1" >/dev/null; }

# Prints the missing packages, one line each with alternatives, the preferred first.
missing() {
  has_compiler || echo 'g++ g++-12'
  command -v ninja >/dev/null || echo 'ninja-build'
  has_meson || echo 'meson'
  command -v pkg-config >/dev/null || echo 'pkg-config pkgconf'
  command -v python3 >/dev/null || echo 'python3'
  has_header fmt/format.h || echo 'libfmt-dev'
  has_header nlohmann/json.hpp || echo 'nlohmann-json3-dev'
  has_header CLI/CLI.hpp || echo 'libcli11-dev'
  has_header sodium.h || echo 'libsodium-dev'
  has_header oneapi/dnnl/dnnl.hpp || echo 'libdnnl-dev libonednn-dev'
  if [[ $tests == yes ]]; then
    has_header catch2/catch.hpp || has_header catch2/catch_all.hpp || echo 'catch2'
    # Provides the fibers on which threads of CUDA kernels run on the host.
    has_header boost/context/fiber.hpp || echo 'libboost-context-dev'
    # Make the file systems of tests/crash/test_disk_clones.py, which only root may mount.
    if [[ $EUID == 0 ]]; then
      has_admin_tool mkfs.xfs || echo 'xfsprogs'
      has_admin_tool mkfs.btrfs || echo 'btrfs-progs'
    fi
  fi
  if [[ $slurm == yes ]]; then
    command -v munged >/dev/null || echo 'munge'
    command -v slurmctld >/dev/null || echo 'slurmctld'
    command -v slurmd >/dev/null || echo 'slurmd'
    command -v srun >/dev/null || echo 'slurm-client'
    has_library 'slurm*/accounting_storage_none.so' || echo 'slurm-wlm-basic-plugins'
    # The library that srun --mpi=pmix opens comes only with the headers' package.
    has_library 'pmix*/lib/libpmix.so' || echo 'libpmix-dev'
  fi
  if [[ $full == yes ]]; then
    command -v strace >/dev/null || echo 'strace'
    has_fuzzer || echo 'clang'
  fi
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 "$@"
}

# Prints the first of the packages that this system offers.
offered() {
  local package
  for package in "$@"; do
    if apt-cache show --no-all-versions "$package" >/dev/null 2>&1; then
      echo "$package"
      return
    fi
  done
  die "this system's package sources offer none of: $* (see $LOGS/apt-update.log; on Ubuntu, enable 'universe')"
}

# Fetches the lists of packages, once a call of this script.
update_lists() {
  [[ -e $LOGS/lists-of-$$ ]] || { apt_get update && touch "$LOGS/lists-of-$$"; }
}
trap 'rm -f "$LOGS/lists-of-$$"' EXIT

install_packages() {
  local line packages=()
  run_logged apt-update.log update_lists ||
    die "cannot install what is missing: ${1//$'\n'/, }"
  while read -r line; do
    # shellcheck disable=SC2086  # a line holds several names
    line=$(offered $line)
    packages+=("$line")
  done <<<"$1"
  say "installing ${packages[*]}"
  run_logged apt-install.log apt_get install --no-install-recommends "${packages[@]}" || exit 1
}

# Used if the system's compiler or meson is too old: installs the versioned package, or from PyPI.
install_newer() {
  if ! has_compiler; then
    run_logged apt-g++-12.log apt_get install --no-install-recommends g++-12 || exit 1
    export CC=gcc-12 CXX=g++-12
  fi
  if ! has_meson; then
    run_logged apt-pip.log apt_get install --no-install-recommends python3-pip || exit 1
    run_logged pip-meson.log python3 -m pip install --user 'meson>=1.0.1' || exit 1
  fi
}

has_mpi() { pkg-config --exists ompi-cxx && command -v mpirun >/dev/null; }
install_mpi() { update_lists && apt_get install --no-install-recommends libopenmpi-dev openmpi-bin; }

wanted=$(missing)
if [[ -n $wanted ]]; then
  command -v apt-get >/dev/null ||
    die "missing, and there is no apt-get to install it: ${wanted//$'\n'/, } (Debian's package names)"
  install_packages "$wanted"
  install_newer
  wanted=$(missing)
  [[ -z $wanted ]] || die "still missing after installing: ${wanted//$'\n'/, }"
fi
# The build works without MPI.
if ! has_mpi && ! { command -v apt-get >/dev/null && run_logged apt-mpi.log install_mpi; }; then
  say "no Open MPI: ranks will be threads, or processes that TCP connects"
fi

# Without it, threads read and write working files.
install_uring() { update_lists && apt_get install --no-install-recommends liburing-dev; }
if ! has_header liburing.h && ! { command -v apt-get >/dev/null && run_logged apt-uring.log install_uring; }; then
  say "no liburing: threads will read and write the files of memory.disk_path"
fi

# Libraries with which `gptrain data` reads and tokenizes; a build without one of them refuses data that need it.
data_libraries=(libpcre2-dev libsimdjson-dev zlib1g-dev libzstd-dev liblzma-dev libbz2-dev libsentencepiece-dev)
has_data_libraries() { pkg-config --exists libpcre2-8 simdjson zlib libzstd liblzma sentencepiece && has_header bzlib.h; }
install_data_libraries() { update_lists && apt_get install --no-install-recommends "${data_libraries[@]}"; }
if ! has_data_libraries && ! { command -v apt-get >/dev/null && run_logged apt-data.log install_data_libraries; }; then
  say "not all of ${data_libraries[*]}: some inputs and tokenizers of \`gptrain data\` will be refused"
fi

# Debian has no package of Arrow; pyarrow's wheel (50 MB, 170 MB unpacked) holds its headers and libraries.
has_arrow() { pkg-config --exists parquet || [[ -n $(python3 tools/find_pyarrow.py) ]]; }
if [[ $parquet == yes ]] && ! has_arrow; then
  say "fetching pyarrow"
  run_logged pip-pyarrow.log python3 -m pip install --no-deps --target build-deps/site pyarrow || exit 1
fi

# Headers for the CUDA backend that no CUDA toolkit has. Without them the build goes on, for the CPU.
has_cudnn_frontend() { has_header cudnn_frontend.h || [[ -n $(python3 tools/find_cudnn_frontend.py) ]]; }
if command -v nvcc >/dev/null && ! has_cudnn_frontend &&
  ! run_logged pip-cudnn-frontend.log python3 -m pip install --no-deps --target build-deps/site "$(cudnn_frontend_wheel)"; then
  say "no cudnn-frontend headers: gptrain will be built without CUDA"
fi

# A test compares the format of files with that of this version; without it, the test is skipped.
has_formatter() {
  command -v clang-format-14 >/dev/null || [[ $(clang-format --version 2>/dev/null) == *' version 14.'* ]]
}
install_formatter() { update_lists && apt_get install --no-install-recommends clang-format-14; }
if [[ $tests == yes ]] && ! has_formatter &&
  ! { command -v apt-get >/dev/null && run_logged apt-clang-format.log install_formatter; }; then
  say "no clang-format 14: the format of files will not be tested"
fi
