# shellcheck shell=bash disable=SC2154 # variables of the program
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Functions of programs that build kernels. $log is the file with the output of the steps, $name the
# program's name, and "make" the words of the command for the kernel's build tree.

die() {
	printf '%s: %s; see %s\n' "$name" "$*" "$log" >&2
	exit 1
}

# A line in this pipe ends the ticker. The script sends no signal: bash prints "wait_for: No record
# of process" if the signal arrives while the ticker starts.
exec 9<> <(:)
ticker=""
stop_ticker() {
	if [[ -n $ticker ]]; then
		printf '\n' >&9
		wait "$ticker"
		ticker=""
	fi
}
trap stop_ticker EXIT

# Prints the last line of the log each minute.
tick() {
	local began=$SECONDS line
	while ! read -rt 60 -u 9 && kill -0 $$ 2>/dev/null; do
		line=$(tail -n 1 "$log")
		printf '\n  %d s: %s ' $((SECONDS - began)) "${line:0:70}"
	done
}

# Runs a step with its output in the log. Prints its name and its duration.
step() {
	local text=$1 began=$SECONDS from
	shift
	printf '%s ... ' "$text"
	printf '=== %s\n' "$text" >>"$log"
	from=$(wc -l <"$log")
	tick &
	ticker=$!
	"$@" >>"$log" 2>&1 || {
		printf 'failed\n'
		tail -n "+$((from + 1))" "$log" | tail -n 40 >&2
		die "$text failed"
	}
	stop_ticker
	printf '%d s\n' $((SECONDS - began))
}

# Prints the options of fragments. In a later fragment, an option has its value for all.
merged() {
	cat "$@" | awk -F = '/^CONFIG_/ { value[$1] = $2 } END { for (o in value) print o "=" value[o] }' |
		sort
}

# Configures the kernel in the build tree DIR: configure DIR BASE FRAGMENT... BASE is a target such
# as tinyconfig. Fails unless every option has its value: olddefconfig silently drops an option with
# an unmet dependency.
configure() {
	local dir=$1 base=$2 option value status=0
	shift 2
	mkdir -p "$dir"
	"${make[@]}" "$base"
	merged "$@" >>"$dir/.config"
	"${make[@]}" olddefconfig
	while IFS='=' read -r option value; do
		if [[ $value != n ]]; then
			grep -qx "$option=$value" "$dir/.config"
		else
			! grep -q "^$option=" "$dir/.config"
		fi || {
			printf "%s can't be %s\n" "$option" "$value"
			status=1
		}
	done < <(merged "$@")
	return "$status"
}

# Installs the modules of a kernel in DIR/lib/modules.
install_modules() {
	rm -rf "${1:?}/lib"
	"${make[@]}" -s INSTALL_MOD_PATH="$1" INSTALL_MOD_STRIP=1 DEPMOD=/usr/sbin/depmod \
		modules_install
}
