// CuPy's complex numbers want these two names of Thrust, and of all that header nothing else.
#pragma once
#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }
