// Package absent finds options that are not given.
package absent

import "reflect"

// Is reports whether an interface holds nothing, or a nil pointer, such as a constructor returns beside an error.
func Is(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
}
