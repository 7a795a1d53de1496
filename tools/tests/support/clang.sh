#!/bin/sh
# A clang that fails in the way TEST_CLANG when it compiles argmax.hip. Other files are compiled by
# the real clang (TEST_REAL_CLANG). With TEST_LOG it writes a line at the start and one at the end
# of each compile of a kernel.
case " $* " in
*" argmax.hip "*)
  if [ -z "$TEST_ONCE" ] || mkdir "$TEST_ONCE" 2>/dev/null; then
    case "$TEST_CLANG" in
    abort) echo "PLEASE submit a bug report" >&2; kill -ABRT $$ ;;
    kill) kill -KILL $$ ;;
    loop) while :; do :; done ;;
    leave) setsid -f sleep 600; while :; do :; done ;;
    eat) head -c 64G /dev/zero | tail; exit 1 ;;
    print) echo "this is not a valid answer" ;;
    garbage) echo "no code object" >kjit-out.co; exit 0 ;;
    refuse) echo "u32 wrong = nonsense;" >>argmax.hip ;;
    esac
  fi
  ;;
esac
case " $* " in
*".hip -o "*)
  if [ -n "$TEST_LOG" ]; then
    echo begin >>"$TEST_LOG"
    "$TEST_REAL_CLANG" "$@"
    code=$?
    echo end >>"$TEST_LOG"
    exit $code
  fi
  ;;
esac
exec "$TEST_REAL_CLANG" "$@"
