#!/bin/sh
# A clang that goes wrong as KJIT_TEST_CLANG says when it compiles argmax.hip, and is the real one (KJIT_TEST_REAL_CLANG) otherwise.
# With KJIT_TEST_LOG it writes a line when a compile of a kernel begins and one when it ends.
case " $* " in
*" argmax.hip "*)
  if [ -z "$KJIT_TEST_ONCE" ] || mkdir "$KJIT_TEST_ONCE" 2>/dev/null; then
    case "$KJIT_TEST_CLANG" in
    abort) echo "PLEASE submit a bug report" >&2; kill -ABRT $$ ;;
    kill) kill -KILL $$ ;;
    loop) while :; do :; done ;;
    leave) setsid -f sleep 600; while :; do :; done ;;
    eat) head -c 64G /dev/zero | tail; exit 1 ;;
    print) echo "this is no answer" ;;
    garbage) echo "no code object" >kjit-out.co; exit 0 ;;
    refuse) echo "u32 wrong = nonsense;" >>argmax.hip ;;
    esac
  fi
  ;;
esac
case " $* " in
*".hip -o "*)
  if [ -n "$KJIT_TEST_LOG" ]; then
    echo begin >>"$KJIT_TEST_LOG"
    "$KJIT_TEST_REAL_CLANG" "$@"
    code=$?
    echo end >>"$KJIT_TEST_LOG"
    exit $code
  fi
  ;;
esac
exec "$KJIT_TEST_REAL_CLANG" "$@"
